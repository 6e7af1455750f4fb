"""Azurite, Microsoft's emulator of Azure Blob Storage, for tests of az:// stores: ``make test-azure``."""
