"""Kubernetes: the only package that talks to an API server, and pure functions over its objects.

It knows nothing about engines, plans, or how results are displayed. Objects are plain dicts.
"""
