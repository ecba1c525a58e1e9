"""The contract suite for users: `windlass conformance` runs it on their engine.

`cases/` is not a package but a project like a user's. It is copied to a temporary folder, pytest runs it
there, and its functions are sent to the nodes. `import windlass` loads nothing from here, and the agent does
not include it. pytest is an optional dependency: `pip install 'windlass[conformance]'`.
"""
