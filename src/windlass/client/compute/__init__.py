"""Warm compute: nodes that stay up, calls of functions and classes on them, and their resources."""
