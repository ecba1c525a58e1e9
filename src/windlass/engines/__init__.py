"""Engines: start the nodes of jobs. An engine starts one agent per node, and the agent does the rest."""
