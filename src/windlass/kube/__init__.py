"""Kubernetes: the only package that talks to an API server, and pure functions over its objects.

It does not know engines, the meaning of plans, or how results are displayed. Objects are plain dicts.
"""
