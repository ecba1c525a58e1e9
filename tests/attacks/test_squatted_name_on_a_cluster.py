"""Squatted name in a real cluster: two users of one namespace, and a compute that the other made first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacks.cluster_ground import working_in
from cluster_space import Space
from kube.users import make_kubeconfig
from strict_cluster.ground import read_rules

import windlass as wl
from windlass.errors import JobNotFound, SpecError

pytestmark = pytest.mark.cluster

Become = Callable[[str], None]


@pytest.fixture
def become(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Become]:
    """Yield a function that switches to a user with its own home, name and cluster account."""
    accounts: dict[str, Path] = {}

    def become(who: str) -> None:
        user, _, place = who.partition(" at ")
        if user not in accounts:
            (tmp_path / user).mkdir()
            accounts[user] = make_kubeconfig(space.api, read_rules(), tmp_path / user)
        monkeypatch.setenv("KUBECONFIG", str(accounts[user]))
        monkeypatch.setenv("LOGNAME", user)
        monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / f"home-{user}-{place}"))

    with working_in(space, tmp_path / "project", monkeypatch):
        yield become


def test_compute_of_another_user_needs_its_owner_in_the_name(become: Become) -> None:
    become("stranger")
    theirs = wl.Compute(name="shared", inactivity_ttl="5m")
    wl.fn(sum, name="add").to(theirs).deploy()
    ref = theirs.nodes().ref
    become("alice")
    with pytest.raises(SpecError, match="shared belongs to stranger"):
        wl.Compute(name="shared").up()
    with pytest.raises(SpecError, match="the deployed name add belongs to stranger"):
        wl.get("add")
    with pytest.raises(SpecError, match="belongs to stranger"):
        wl.Compute(name="shared").teardown()
    with pytest.raises(JobNotFound):
        wl.get("eve/add")
    assert wl.get("stranger/add")([1, 2]) in (3, [3])
    used = wl.Compute(name="stranger/shared")
    assert wl.fn(max).to(used)([1, 2]) in (2, [2])
    assert used.nodes().ref == ref, "it is used and not replaced"
    become("stranger at another machine")
    again = wl.Compute(name="shared", inactivity_ttl="5m").up()
    assert again.nodes().ref == ref
    again.teardown()
