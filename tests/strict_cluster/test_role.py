"""Everything a user does, with exactly the documented Role, in a namespace with all restrictions.

Afterwards the audit log must show no request outside the Role, and no unused right in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from strict_cluster.conftest import Become
from strict_cluster.ground import WAIT_S, Ground, wait_for

import windlass as wl
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.objects.kinds import SECRETS

pytestmark = pytest.mark.cluster

Move = Callable[[str], None]  # switches to another machine, which knows no jobs

# API servers before 1.35 check only `get` when a websocket is opened. Later ones check `create` too.
OF_NEWER_SERVERS = {("create", "pods/portforward")}
# Every user may ask for their own rights and name.
ALWAYS_ALLOWED = {
    ("create", "selfsubjectrulesreviews"),
    ("create", "selfsubjectaccessreviews"),
    ("create", "selfsubjectreviews"),
}


def test_typical_use_needs_exactly_the_role(
    strict_ground: Ground,
    become: Become,
    audit_log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = strict_ground.add_user(tmp_path / "user")
    name, start = user.name, audit_log.stat()

    def move(name: str) -> None:
        monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / name))

    become(strict_ground, user)
    _run_attached()
    _detach_and_attach(move)
    _attach_to_an_interrupted_submit(strict_ground, move)
    _ask_why_it_waits()
    strict_ground.wait_for_nothing()
    seen = set(_read_requests(audit_log, start, name))
    granted = {(verb, right.resource) for right in KUBERNETES.rights for verb in right.verbs}
    needed = {
        (verb, right.resource)
        for right in KUBERNETES.rights
        if not right.optional
        for verb in right.verbs
    }
    assert {request[:2] for request in seen} <= granted | ALWAYS_ALLOWED
    refused = {(verb, what) for verb, what, code in seen if code == 403}
    assert refused == set()
    idle = needed - {request[:2] for request in seen}
    assert idle <= OF_NEWER_SERVERS, f"the Role grants unused rights: {idle}"


def _run_attached() -> None:
    assert wl.run("training.py::reduce", nodes=2, procs=2, quiet=True) == [10, 10, 10, 10]
    job = wl.jobs()[0]
    lines = {(line.rank, line.stream, line.text) for line in job.logs()}
    for rank in range(4):
        assert {(rank, "stdout", "reduced to 10"), (rank, "stderr", "to stderr")} <= lines
    job.remove()


def _detach_and_attach(move: Move) -> None:
    ref = str(wl.submit("training.py::reduce", nodes=2, procs=2).ref)
    move("elsewhere")
    job = wl.attach(ref)
    assert job.result(rank=3, timeout_s=WAIT_S) == 10
    assert sum(line.text == "reduced to 10" for line in job.logs()) == 4
    move("later")
    late = wl.attach(ref)
    assert late.results(timeout_s=120) == [10, 10, 10, 10]
    assert sum(line.text == "reduced to 10" for line in late.logs()) == 4
    late.remove()
    staying = wl.submit("work.py::stay", nodes=2)
    wait_for(lambda: sum(line.text == "up" for line in staying.logs()) == 2, "both are up")
    staying.cancel(why="enough")
    assert staying.wait(30).verdict.message == "enough"


def _attach_to_an_interrupted_submit(ground: Ground, move: Move) -> None:
    """Attach to a job without a Secret. It can be reported and removed."""
    job = wl.submit("work.py::stay")
    assert ground.api.delete(SECRETS, job.id)
    move("puzzled")
    other = wl.attach(str(job.ref))
    with pytest.raises(wl.EngineError, match="was interrupted before it was complete"):
        other.status()
    job.cancel(now=True)
    job.wait(30)


def _ask_why_it_waits() -> None:
    """Show why a job waits. Optional requests for a more exact answer also stay within the Role."""
    job = wl.submit(["true"], gpus=4096)
    wait_for(
        lambda: any(one.reason == "Unschedulable" for one in job.status().conditions),
        "the status reports that no node is large enough",
    )
    job.cancel(now=True)
    job.wait(30)


def _read_requests(log: Path, start: os.stat_result, name: str) -> Iterator[tuple[str, str, int]]:
    """Yield the verb, resource and status code of each request this user has sent since."""
    for line in _read_lines(log, start):
        # Other users write here at the same time. A line that is still being written is theirs.
        if json.dumps(name).encode() not in line or not line.endswith(b"\n"):
            continue
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if event["user"]["username"] == name and about:
            what = "/".join(about[key] for key in ("resource", "subresource") if key in about)
            yield event["verb"], what, event["responseStatus"]["code"]


def _read_lines(log: Path, start: os.stat_result) -> Iterator[bytes]:
    """Yield the lines written since then, also to the files that followed after a rotation."""
    older = sorted(log.parent.glob(f"{log.stem}-*{log.suffix}"), key=lambda p: p.stat().st_mtime)
    files = [*older, log]
    inodes = [path.stat().st_ino for path in files]
    for number, path in enumerate(files[inodes.index(start.st_ino) :]):
        with path.open("rb") as lines:
            lines.seek(0 if number else start.st_size)
            yield from lines
