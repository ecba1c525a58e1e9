"""Ranks of a training run: the context of one process, the shape of the world, and layouts of a model."""
