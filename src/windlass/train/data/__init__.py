"""Data of a training: samples and tokens, and which rank reads what in which step."""
