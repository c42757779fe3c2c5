"""Clicks, which are not of texts: what is trained stands in `training.ctr` as a whole."""
