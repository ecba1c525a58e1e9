"""Clients in separate processes, so that they can be killed."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chaos_cluster.ground import WAIT_S, Ground, wait_for

from windlass import names
from windlass.kube.client.api_errors import ClusterError

WINDLASS = (sys.executable, "-m", "windlass.cli.main")


@contextmanager
def run_client(ground: Ground, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the training job with `windlass run` on two nodes. The client is killed at the end of the test."""
    command = [*WINDLASS, "run", "training.py::train", "--nodes", "2", *words]
    with subprocess.Popen(
        command,
        cwd=ground.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            yield client
        finally:
            client.kill()
            client.communicate()


def run_windlass(*words: str) -> subprocess.CompletedProcess[str]:
    """Run another windlass command to its end."""
    return subprocess.run([*WINDLASS, *words], capture_output=True, text=True, timeout=WAIT_S)


def find_job(ground: Ground) -> str:
    """Wait for the only job of the namespace and return its id."""
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = ground.api.list(ground.dialect.kind, labels=names.LABEL_JOB)
        return len(found) == 1

    wait_for(is_there, "a Job")
    return str(found[0]["metadata"]["name"])


def wait_for_line(ground: Ground, job: str, text: str, *, node: int = 0) -> None:
    """Wait until the text is in the log of a node's pod. Needs no client of Windlass."""

    def is_logged() -> bool:
        pods = [
            pod for pod in ground.pods(job, node) if not pod["metadata"].get("deletionTimestamp")
        ]
        if not pods:
            return False
        try:
            return text.encode() in ground.api.read_log(
                pods[-1]["metadata"]["name"], container=ground.dialect.container
            )
        except ClusterError:  # the container has not started yet
            return False

    wait_for(is_logged, f"{text!r} in the log of node {node}")


@contextmanager
def watch_created_objects(ground: Ground) -> Iterator[queue.Queue[str]]:
    """Yield a queue of all objects with a job's label, in the order of their creation."""
    created: queue.Queue[str] = queue.Queue()
    stop = threading.Event()
    ready = [threading.Event() for _ in ground.kinds]

    def watch(kind: Any, is_ready: threading.Event) -> None:
        seen = ground.api.watch(kind, labels=names.LABEL_JOB, stop=stop, timeout_s=WAIT_S)
        for event, found in seen:
            if event == "SYNCED":
                is_ready.set()
            elif event == "ADDED":
                created.put(f"{kind.plural}/{found['metadata']['name']}")

    threads = [
        threading.Thread(target=watch, args=pair, daemon=True)
        for pair in zip(ground.kinds, ready, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(WAIT_S) for event in ready)
        yield created
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
