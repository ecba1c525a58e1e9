"""Runs in node 0's agent only: decides for all nodes, hears clients, writes the status."""
