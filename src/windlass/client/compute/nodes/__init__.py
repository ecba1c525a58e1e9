"""Live nodes of a compute: what they must be like, who owns them, how they are found and reached."""
