"""`windlass conformance` on a cluster: what it makes goes again, what is missing is told before any case."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl
from windlass.kube.objects.kinds import JOBS, NAMESPACES

pytestmark = pytest.mark.cluster
WINDLASS = [sys.executable, "-m", "windlass.cli.main", "conformance", "-e", "kubernetes"]


def start(space, *words):
    """In a process of its own, with no settings but these."""
    return subprocess.Popen(
        [*WINDLASS, "--image", space.image, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_namespace(said):
    (name,) = re.findall(r"in namespace (windlass-conformance-\w+), made for this run", said)
    return name


def is_there(space, namespace):
    return any(one["metadata"]["name"] == namespace for one in space.api.list(NAMESPACES))


@pytest.mark.timeout(400)
def test_it_runs_in_a_namespace_of_its_own_which_goes(space):
    words = ["-k", "rank_order or starts_every_rank_again", "--json"]
    process = start(space, *words)
    out, err = process.communicate(timeout=380)
    assert process.returncode == 0, err
    assert {row["case"]: row["result"] for row in json.loads(out)} == {
        "test_life::test_restart_starts_every_rank_again": "passed",
        "test_results::test_every_rank_in_rank_order": "passed",
    }
    assert not is_there(space, read_namespace(err))


@pytest.mark.timeout(400)
def test_an_interrupt_leaves_nothing(space):
    process = start(space, "-k", "killed_after_the_grace or hang")
    said = ""
    while " cases\n" not in said:
        said += process.stderr.readline()
    namespace = read_namespace(said)
    wait_for(lambda: space.api.list(JOBS, namespace=namespace), "a case has a job")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert not is_there(space, namespace)


def test_what_is_missing_is_told_first(space):
    process = start(space, "--namespace", "no-such-namespace")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert err.startswith(
        "windlass: there is no namespace no-such-namespace\n  hint: kubectl create"
    )


def test_a_namespace_with_jobs_is_left_alone(space, monkeypatch):
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    job = wl.submit(work.hang)
    try:
        process = start(space, "--namespace", space.namespace)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, "")
        assert f"namespace {space.namespace} already has jobs" in err
        assert not job.done()
    finally:
        job.cancel(now=True)
        job.wait(60)
        job.remove()
