"""Specifications: a user's request as frozen records. Uses only the standard library."""
