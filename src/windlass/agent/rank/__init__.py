"""Code that runs in a rank's process: before, around and after the user's code."""
