"""Paddle programs as data, and the passes over them; nothing here runs a program."""
