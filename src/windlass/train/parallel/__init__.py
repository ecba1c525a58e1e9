"""A world of ranks: one process of it, its shape, and how a model is laid out over it."""
