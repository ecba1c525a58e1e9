"""Checkpoints of a training: named objects, saved by all ranks together and loaded by any number."""
