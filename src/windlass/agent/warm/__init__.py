"""Warm nodes: agents that stay up and run one call after another. Standard library only."""
