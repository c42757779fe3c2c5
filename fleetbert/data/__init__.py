"""Text → examples → token ids → batches. Needs NumPy and `tokenizers` only, never Paddle."""
