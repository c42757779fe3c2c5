"""A search for the settings that train best, on Optuna."""
