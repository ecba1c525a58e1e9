"""Tests of the bundle: which files travel, and that they arrive whole and nowhere else."""
