"""Frameworks: how work is spread over the ranks of a job. One file each, and a table of their names."""
