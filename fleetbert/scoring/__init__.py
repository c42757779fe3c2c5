"""Texts in Arrow tables → their answers as columns, one table or a folder of files at a time."""
