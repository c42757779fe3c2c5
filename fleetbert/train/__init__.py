"""The training loop and what can be chosen for it: strategy, precision, callbacks."""
