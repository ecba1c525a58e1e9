"""Kubernetes: the only package that speaks to an API server, and pure functions over its objects.

Knows nothing of engines, plans' meaning or how anything is shown. Plain dicts in and out.
"""
