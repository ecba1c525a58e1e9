"""Warm compute: nodes that stay up, the calls of functions and classes on them, and their resources."""
