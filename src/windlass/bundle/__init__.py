"""Which files travel, their hashes, the delta and the archive; functions by value or by reference.

Empty on purpose: `extract`, `place`, `manifest` and `paths` run inside a node with nothing but the
standard library, so importing the package may not pull in what only the client has.
"""
