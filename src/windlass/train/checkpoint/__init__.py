"""Checkpoints of a training run: named objects, saved by all ranks together and loaded by any number."""
