"""Verbs of the command line, one per module. Small verbs on the same topic share a module."""
