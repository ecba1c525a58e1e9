"""Data of a training run: samples and tokens, and the part that each rank reads in a step."""
