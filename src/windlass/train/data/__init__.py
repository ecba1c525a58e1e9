"""Data of a training: samples and tokens, and the part that each rank reads in a step."""
