"""The contract suite, for users: `windlass conformance` runs it on an engine of theirs.

`cases/` is no package but a project, as a user's is: it is copied to a folder of its own, its functions
travel from there to the nodes, and pytest runs it. Nothing here is loaded by `import windlass`, and nothing
of it is part of the agent. pytest is an extra: `pip install 'windlass[conformance]'`.
"""
