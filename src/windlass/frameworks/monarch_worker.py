"""Monarch's worker on one node: takes orders of the rank on node 0, and starts the processes of its actors.

A fork of the fork server, which imports Monarch only here: it starts threads. On one machine they listen at
Unix sockets in a folder that only their user can enter, in pods at the port that Monarch's own clients look
for. Actors' processes are its children and end with it.
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
    from windlass.frameworks.framework import TellCluster
    from windlass.wire.messages.forkserver import ClusterNode

_START_S = 60.0
_LOOK_S = 0.02


def run_worker(node: ClusterNode, tell: TellCluster) -> NoReturn:
    """Be the worker of one node: tell where it is, or why it cannot be, and stay."""
    version = python_ranks.find_version("torchmonarch")
    error = find_fault(version, node)
    if error:
        tell(0, error=error)
        os._exit(1)
    _prepare_process(node)
    address = make_address(node)
    error = _serve(address, lambda: tell(0, address=address, note=make_note(version, node)))
    tell(0, error=f"Monarch's worker could not start on node {node.index}: {error}")
    os._exit(1)


def find_fault(version: str, node: ClusterNode) -> str:
    """Why there can be no worker; empty when there can."""
    if version:
        return ""
    return (
        f"Monarch is not installed on node {node.index} ({sys.executable}) -> "
        "pip install torchmonarch there, or use an image that has it"
    )


def make_note(version: str, node: ClusterNode) -> str:
    """What people should know of this node: nothing of Monarch's travels from the client but by name."""
    if node.index or not node.version or node.version == version:
        return ""
    return (
        f"the client has Monarch {node.version}, the nodes have {version}: results that hold objects "
        "of Monarch's may not be readable here"
    )


def make_address(node: ClusterNode) -> str:
    """Where the worker listens, as Monarch writes it."""
    if node.own_address:
        host = f"[{node.own_address}]" if ":" in node.own_address else node.own_address
        return f"tcp://{host}:{names.MONARCH_PORT}"
    return f"ipc://{Path(node.folder) / f'm{node.index}-{os.getpid()}'}"


def _prepare_process(node: ClusterNode) -> None:
    """As a rank would be, for the processes of actors, which inherit it."""
    for name in node.forget:
        os.environ.pop(name, None)
    for name, value in node.env.items():
        os.environ.setdefault(name, value)  # a compute's may have been changed since
    paths = [*node.paths, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    # byte code is told from its source by whole seconds, and an edit and a call can be closer
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PYTHONUNBUFFERED"] = "1"
    if node.cwd:
        os.chdir(node.cwd)


def _serve(address: str, tell_ready: Any) -> str:
    """Serve for as long as this process lives; why it does not."""
    try:
        from monarch.actor import start_worker_loop_forever

        serving = start_worker_loop_forever(address=address, ca="trust_all_connections")
    except Exception as error:  # noqa: BLE001 - Monarch's own, a panic of its runtime
        return f"{type(error).__name__}: {error}"
    until_s = time.monotonic() + _START_S
    is_told = False
    while True:
        try:
            serving.get(timeout=None if is_told else _LOOK_S)
        except TimeoutError:
            if _is_listening(address):
                tell_ready()
                is_told = True
            elif time.monotonic() > until_s:
                return f"it did not listen within {_START_S:g} s"
            continue
        except Exception as error:  # noqa: BLE001
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = "it was shut down"
        if is_told:
            os._exit(1)
        return reason


def _is_listening(address: str) -> bool:
    kind, _, place = address.partition("://")
    try:
        if kind == "ipc":
            with socket.socket(socket.AF_UNIX) as dialing:
                dialing.connect(place)
            return True
        host, _, port = place.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except OSError:
        return False
