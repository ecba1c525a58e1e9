"""Checkpoints of a training: a state of named objects, saved by all ranks and loaded at any number."""
