"""The networks: encoders, heads, and loading of weights; no devices, no parallelism."""
