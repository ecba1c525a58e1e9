"""One strict and one plain namespace for all of these tests, and a project and a cleanup for each test.

The audit log is expected next to the kubeconfig, where the testbed writes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from strict_cluster.ground import Ground, User, make_project, open_ground

# Read at import, because tests run without the variables of the caller, and as other users.
TEST_IMAGE = os.environ.get("WINDLASS_TEST_IMAGE", "localhost/torch:2.13.0-cpu")
ADMIN = os.environ.get("KUBECONFIG", "")

Become = Callable[[Ground, User | None], None]


@pytest.fixture(scope="session")
def strict_ground() -> Iterator[Ground]:
    """Open a namespace with restricted Pod Security, a quota, a limit range and no allowed traffic."""
    with open_ground(TEST_IMAGE, is_strict=True) as found:
        yield found


@pytest.fixture(scope="session")
def plain_ground() -> Iterator[Ground]:
    """Open a namespace with restricted Pod Security only."""
    with open_ground(TEST_IMAGE, is_strict=False, kind="plain") as found:
        yield found


@pytest.fixture(scope="session")
def strict_user(strict_ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Create a user with exactly the documented Role."""
    return strict_ground.add_user(tmp_path_factory.mktemp("strict-user"))


@pytest.fixture(scope="session")
def plain_user(plain_ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> User:
    return plain_ground.add_user(tmp_path_factory.mktemp("plain-user"))


@pytest.fixture
def become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Become:
    """Return a function that switches to a user of a namespace, or to its admin. The project is new."""
    folder = make_project(tmp_path / "project")
    monkeypatch.chdir(folder)

    def become(ground: Ground, user: User | None) -> None:
        for name, value in ground.settings(user.kubeconfig if user else ADMIN).items():
            monkeypatch.setenv(name, value)

    return become


@pytest.fixture
def strict(strict_ground: Ground, strict_user: User, become: Become) -> Iterator[Ground]:
    """Use the strict namespace as a user with the Role."""
    become(strict_ground, strict_user)
    yield strict_ground
    strict_ground.clean()


@pytest.fixture
def plain(plain_ground: Ground, plain_user: User, become: Become) -> Iterator[Ground]:
    """Use the plain namespace as a user with the Role."""
    become(plain_ground, plain_user)
    yield plain_ground
    plain_ground.clean()


@pytest.fixture(scope="session")
def audit_log() -> Path:
    """Return the API server's audit log. Only the testbed's can be read from here."""
    found = Path(os.environ.get("STRICT_AUDIT_LOG") or Path(ADMIN).parent / "log" / "audit.jsonl")
    if not found.is_file():
        pytest.skip(f"needs an audit log: there is no {found.name} in log/ beside the kubeconfig")
    return found
