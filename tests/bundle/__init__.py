"""Tests of the bundle: the files that are sent, and their complete arrival in the right place only."""
