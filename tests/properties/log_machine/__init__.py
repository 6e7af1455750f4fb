"""The state machine of test_log_model.py, rule by rule."""
