"""Warm compute: nodes that stay, functions and classes called on them, and what such nodes are made of."""
