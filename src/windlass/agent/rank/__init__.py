"""Runs in the user's process: before, around and after the user's code."""
