"""Monarch's worker on one node, which serves the rank on node 0 and starts the processes of its actors.

It runs in a fork of the fork server. Only this process imports Monarch, because Monarch starts threads. On
one machine, workers listen on Unix sockets in a folder that only their user can enter. In pods they listen
on the port that Monarch's own clients expect. Actor processes are the worker's children and end with it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from windlass import names
from windlass.frameworks import python_ranks

if TYPE_CHECKING:
    from windlass.frameworks.framework import ReportCluster
    from windlass.wire.messages.forkserver import ClusterNode

_START_S = 60.0
_POLL_S = 0.02


def run_worker(node: ClusterNode, report: ReportCluster) -> NoReturn:
    """Run the worker of one node. Report its address, then serve. Exit if it cannot start."""
    version = python_ranks.find_version("torchmonarch")
    error = find_fault(version, node)
    if error:
        report(0, error=error)
        os._exit(1)
    _prepare_process(node)
    address = make_address(node)
    error = _serve(address, lambda: report(0, address=address, note=make_note(version, node)))
    report(0, error=f"Monarch's worker could not start on node {node.index}: {error}")
    os._exit(1)


def find_fault(version: str, node: ClusterNode) -> str:
    """Return why no worker can start on this node, or an empty string."""
    if version:
        return ""
    return (
        f"Monarch is not installed on node {node.index} ({sys.executable}) -> "
        "run `pip install torchmonarch` there, or use an image that has it"
    )


def make_note(version: str, node: ClusterNode) -> str:
    """Return a warning about a version mismatch with the client, or an empty string.

    The client sends Monarch objects by name only, so only results can be affected.
    """
    if node.index or not node.version or node.version == version:
        return ""
    return (
        f"the client has Monarch {node.version}, the nodes have {version}: the client may be unable to "
        "read results that contain Monarch objects"
    )


def make_address(node: ClusterNode) -> str:
    """Return the address at which the worker listens, in Monarch's notation."""
    if node.own_address:
        host = f"[{node.own_address}]" if ":" in node.own_address else node.own_address
        return f"tcp://{host}:{names.MONARCH_PORT}"
    return f"ipc://{Path(node.folder) / f'm{node.index}-{os.getpid()}'}"


def _prepare_process(node: ClusterNode) -> None:
    """Set up the environment as for a rank. Actor processes inherit it."""
    for name in node.forget:
        os.environ.pop(name, None)
    for name, value in node.env.items():
        os.environ.setdefault(name, value)  # a compute may have changed its variables since
    paths = [*node.paths, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    # Python compares byte code and source by whole seconds, and an edit and a call can be closer
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PYTHONUNBUFFERED"] = "1"
    if node.cwd:
        os.chdir(node.cwd)


def _serve(address: str, report_ready: Any) -> str:
    """Serve until this process ends. Return the reason if the worker could not start."""
    try:
        from monarch.actor import start_worker_loop_forever

        serving = start_worker_loop_forever(address=address, ca="trust_all_connections")
    except Exception as error:  # noqa: BLE001 - Monarch may raise anything, such as a runtime panic
        return f"{type(error).__name__}: {error}"
    until_s = time.monotonic() + _START_S
    is_ready = False
    while True:
        try:
            serving.get(timeout=None if is_ready else _POLL_S)
        except TimeoutError:
            if _is_listening(address):
                report_ready()
                is_ready = True
            elif time.monotonic() > until_s:
                return f"it did not listen within {_START_S:g} s"
            continue
        except Exception as error:  # noqa: BLE001
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = "it was shut down"
        if is_ready:
            os._exit(1)
        return reason


def _is_listening(address: str) -> bool:
    kind, _, place = address.partition("://")
    try:
        if kind == "ipc":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(place)
            return True
        host, _, port = place.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except OSError:
        return False
