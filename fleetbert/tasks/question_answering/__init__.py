"""The answer to a question: a part of the context that comes with it, or none."""
