"""Engines give us nodes. Each starts N agents; everything else the agents do themselves."""
