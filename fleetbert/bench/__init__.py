"""Measures this project beside other engines, in one run and by turns."""
