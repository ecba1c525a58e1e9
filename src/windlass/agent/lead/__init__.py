"""Code that runs only in node 0's agent: decides for all nodes, serves clients, writes the status."""
