"""Smaller and faster variants of a bundle, within an accuracy that the user names."""
