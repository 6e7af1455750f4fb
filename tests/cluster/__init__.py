"""The data source on a real cluster: a master and two workers, each a process of its own."""
