"""Diagnoses of pods that wait, cannot be created, fail to start, or have ended. No I/O."""
