"""Care of logs in a store: survey, verify, garbage, restore, rebuild."""
