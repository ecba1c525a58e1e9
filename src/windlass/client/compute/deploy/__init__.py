"""Decorated objects and apps that are deployed under a name."""
