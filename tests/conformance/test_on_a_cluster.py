"""`windlass conformance` on a cluster: it deletes what it creates, and reports errors before any case."""

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
    """Start the command in a new process with only these settings."""
    return subprocess.Popen(
        [*WINDLASS, "--image", space.image, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_namespace(output):
    (name,) = re.findall(r"in namespace (windlass-conformance-\w+), made for this run", output)
    return name


def has_namespace(space, namespace):
    return any(one["metadata"]["name"] == namespace for one in space.api.list(NAMESPACES))


@pytest.mark.timeout(400)
def test_run_deletes_its_own_namespace(space):
    words = ["-k", "rank_order or starts_every_rank_again", "--json"]
    process = start(space, *words)
    out, err = process.communicate(timeout=380)
    assert process.returncode == 0, err
    assert {row["case"]: row["result"] for row in json.loads(out)} == {
        "test_life::test_restart_starts_every_rank_again": "passed",
        "test_results::test_every_rank_in_rank_order": "passed",
    }
    assert not has_namespace(space, read_namespace(err))


@pytest.mark.timeout(400)
def test_interrupt_deletes_the_namespace(space):
    process = start(space, "-k", "killed_after_the_grace or hang")
    output = ""
    while " cases\n" not in output:
        output += process.stderr.readline()
    namespace = read_namespace(output)
    wait_for(lambda: space.api.list(JOBS, namespace=namespace), "a case has a job")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert not has_namespace(space, namespace)


def test_missing_namespace_is_reported_first(space):
    process = start(space, "--namespace", "no-such-namespace")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert err.startswith(
        "windlass: namespace no-such-namespace not found\n  hint: run `kubectl create"
    )


def test_namespace_with_jobs_is_refused(space, monkeypatch):
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
