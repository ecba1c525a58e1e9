"""Each right is removed in turn. The error names it with a hint, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from strict_cluster.conftest import Become
from strict_cluster.ground import WAIT_S, Ground, read_rules, wait_for, without_right

import windlass as wl
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.client.api_errors import Forbidden
from windlass.kube.objects.kinds import JOBS, SECRETS
from windlass.waiting import wait_until

pytestmark = pytest.mark.cluster

NEEDED = [(verb, r.resource) for r in KUBERNETES.rights if not r.optional for verb in r.verbs]
OPTIONAL = [(verb, r.resource) for r in KUBERNETES.rights if r.optional for verb in r.verbs]


def check_named(error: Forbidden, verb: str, resource: str) -> None:
    assert f"you may not {verb} {resource}" in error.message
    assert "windlass doctor -e kubernetes" in error.hint


@pytest.mark.parametrize(("verb", "resource"), NEEDED, ids=lambda word: word)
def test_submit_without_a_needed_right(
    strict_ground: Ground, become: Become, tmp_path: Path, verb: str, resource: str
) -> None:
    become(strict_ground, strict_ground.add_user(tmp_path / "user", without_right(verb, resource)))
    with pytest.raises(Forbidden) as caught:
        wl.submit(["true"])
    check_named(caught.value, verb, resource)
    assert f"in namespace {strict_ground.api.namespace}" in caught.value.message
    assert strict_ground.left() == []
    assert not list((tmp_path / "home" / "kubernetes").iterdir()), (
        "nothing is left on this machine either"
    )


def test_submit_without_the_optional_rights(
    strict_ground: Ground, become: Become, tmp_path: Path
) -> None:
    optional = {resource for _, resource in OPTIONAL}
    rules = [rule for rule in read_rules() if not optional & set(rule["resources"])]
    become(strict_ground, strict_ground.add_user(tmp_path / "user", rules))
    job = wl.submit("work.py::hello")
    assert job.results(timeout_s=WAIT_S) == ["hello"]
    strict_ground.clean()


def test_new_volume_without_the_right_to_create_one(
    strict_ground: Ground, become: Become, tmp_path: Path
) -> None:
    rules = without_right("create", "persistentvolumeclaims")
    become(strict_ground, strict_ground.add_user(tmp_path / "user", rules))
    with pytest.raises(Forbidden) as caught:
        wl.submit(["true"], volumes=["new:1Gi:/data"])
    check_named(caught.value, "create", "persistentvolumeclaims")
    strict_ground.wait_for_nothing()


@pytest.fixture
def running(strict: Ground) -> wl.Job:
    """Submit a job that runs until it is stopped, as its owner."""
    job = wl.submit("work.py::stay")
    wait_for(lambda: any(line.text == "up" for line in job.logs()), "it is up")
    return job


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("list", "jobs"), ("watch", "jobs"), ("list", "pods"), ("watch", "pods"), ("get", "secrets")],
    ids=lambda word: word,
)
def test_other_user_attaches_to_a_waiting_job(
    strict: Ground,
    become: Become,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    resource: str,
) -> None:
    job = wl.submit(["true"], node_selector={"nowhere": "here"})
    become(strict, strict.add_user(tmp_path / "user", without_right(verb, resource)))
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(Forbidden) as caught:
        wl.attach(str(job.ref)).wait(15)
    check_named(caught.value, verb, resource)


def test_other_user_without_the_right_to_connect_to_the_lead(
    running: wl.Job, strict: Ground, become: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(strict, strict.add_user(tmp_path / "user", without_right("get", "pods/portforward")))
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(Forbidden) as caught:
        wl.attach(str(running.ref)).status()
    check_named(caught.value, "get", "pods/portforward")


def test_other_user_attaches_to_an_ended_job(
    strict: Ground, become: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = wl.submit("work.py::hello")
    assert job.results(timeout_s=WAIT_S) == ["hello"]

    def is_complete() -> bool:
        conditions = strict.api.get(JOBS, job.id)["status"].get("conditions") or ()
        return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)

    # while the lead is running, the client asks it instead of reading the log
    assert wait_until(is_complete, timeout_s=WAIT_S)

    def become_without(verb: str, resource: str) -> None:
        folder = tmp_path / f"{verb}-{resource.replace('/', '-')}"
        become(strict, strict.add_user(folder, without_right(verb, resource)))
        monkeypatch.setenv("WINDLASS_HOME", str(folder / "home"))

    become_without("get", "pods/log")
    with pytest.raises(Forbidden) as caught:
        wl.attach(str(job.ref)).results(timeout_s=120)
    check_named(caught.value, "get", "pods/log")
    become_without("delete", "jobs")
    other = wl.attach(str(job.ref))
    assert other.results(timeout_s=120) == ["hello"]
    with pytest.raises(Forbidden) as caught:
        other.remove()
    check_named(caught.value, "delete", "jobs")
    assert strict.left(job.id), "what may not be deleted is still there"


def test_cancel_without_the_right_to_delete_warns(
    running: wl.Job,
    strict: Ground,
    become: Become,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    become(strict, strict.add_user(tmp_path / "user", without_right("delete", "jobs")))
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "elsewhere"))
    other = wl.attach(str(running.ref))
    other.cancel(now=True)
    assert other.wait(60).phase.value == "cancelled"
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    warnings = [text for text in warned if running.id in text]
    assert [f"{running.id} stays in the cluster" in text for text in warnings] == [True]
    assert "you may not delete jobs" in warnings[0]
    assert strict.api.get(JOBS, running.id)["metadata"]["name"] == running.id


def test_interrupted_submit_without_the_right_to_read_it(
    running: wl.Job, strict: Ground, become: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict.api.delete(SECRETS, running.id)
    become(strict, strict.add_user(tmp_path / "user", without_right("get", "jobs")))
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(Forbidden) as caught:
        wl.attach(str(running.ref)).status()
    check_named(caught.value, "get", "jobs")
