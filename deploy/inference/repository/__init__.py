"""The models on disk, and which of their versions are served."""
