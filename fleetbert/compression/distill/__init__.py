"""A smaller model learns from a trained one: a student beside it, or layers in its place."""
