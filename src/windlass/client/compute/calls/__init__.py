"""Calls of functions and classes on a compute, from the callable to the reply."""
