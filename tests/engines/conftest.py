"""A disk that is full, as far as this process is concerned."""

from __future__ import annotations

import resource

import pytest


@pytest.fixture
def room():
    """Takes the room for files away from this process, and gives it back."""
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(num_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if num_bytes is None else num_bytes, most))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
