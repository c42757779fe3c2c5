"""The processes that hold the engines, and what is said to them."""
