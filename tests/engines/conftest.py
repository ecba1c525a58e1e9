"""A full disk, as seen by this process."""

from __future__ import annotations

import resource

import pytest


@pytest.fixture
def room():
    """Yield a function that limits the size of files this process may write. None removes the limit."""
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(num_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if num_bytes is None else num_bytes, most))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
