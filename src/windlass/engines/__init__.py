"""Engines, which start the nodes of jobs. Each starts one agent per node, which does all other work."""
