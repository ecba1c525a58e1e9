"""Ray on one node: `ray start --block`, and its parent, which tells when it is up and ends with it.

The head on node 0, workers elsewhere. They end with the agent however that ends: each process of the chain
gets SIGKILL when its parent dies, and Ray's own do so under `--block`. What cannot work is said before Ray is
started.
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import socket
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from windlass import names
from windlass.agent.frameworks import python_ranks
from windlass.agent.frameworks.ray_flags import (
    AGENT_PORT,
    FIRST_WITH_TOKENS,
    choose_dashboard_port,
    make_auth,
    make_flags,
    read_version,
)
from windlass.agent.frameworks.ray_start import RayStart, read_address

if TYPE_CHECKING:
    from windlass.agent.frameworks.framework import TellCluster
    from windlass.wire.messages.forkserver import ClusterNode

_POLL_S = 0.05
_CONNECT_S = 2.0
_AGENT_S = 15.0
_HELD_S = 5.0  # in which most functions have begun
_MAX_FOLDER = 107 - len("/session_2026-01-01_00-00-00_000000_1000000/sockets/plasma_store")
_TRIES = 3
# ports that were free may be taken a moment later; on a busy machine Ray's own 30 s may be too few
_WORTH_ANOTHER = ("port", "timed out", "No node info")


def run_node(address: str, port: int, node: ClusterNode, tell: TellCluster) -> NoReturn:
    """Be the parent of one node of a Ray cluster: tell where it is, or why it cannot be, and stay."""
    version = python_ranks.find_version("ray")
    error = find_fault(version, node)
    if error:
        tell(0, error=error)
        os._exit(1)
    _prepare_process(node)
    if node.joins:
        _wait_for_head(address, node, port)
    folder = _make_folder(node)
    holds = not node.joins and read_version(version) >= FIRST_WITH_TOKENS
    for _ in range(_TRIES):
        page = choose_dashboard_port(node)
        flags = make_flags(address, port, node, folder, dashboard_port=page)
        started = RayStart(flags, folder, holds=holds, joins=node.joins)
        error = started.wait()
        if not any(sign in error for sign in _WORTH_ANOTHER):
            break
    if error:
        tell(0, error=f"Ray could not start on node {node.index}: {error}")
        os._exit(1)
    host, own_port = read_address(folder)
    if node.joins and not own_port:
        host, own_port = address, port
    dashboard = f"127.0.0.1:{page}" if page else ""
    tell(own_port, address=host, note=make_note(version, node), dashboard=dashboard)
    _wait_for_end(started)
    os._exit(1)


# -- what must be so -----------------------------------------------------------------------------


def find_fault(version: str, node: ClusterNode) -> str:
    """Why Ray cannot be what was asked for; empty when it can."""
    where = f"node {node.index}"
    if not version:
        return (
            f"Ray is not installed on {where} ({sys.executable}) -> "
            "pip install 'ray[default]' there, or use an image that has it: images.ray(TAG)"
        )
    if node.version and read_version(version)[:1] != read_version(node.version)[:1]:
        return (
            f"the client has Ray {node.version}, and {where} has {version}: what one pickles the other "
            f"may not read -> use the same on both: pip install ray=={version}, or another image"
        )
    if node.own_address or node.pretends_gpus or node.size.gpus <= (here := count_gpus()):
        return ""  # a cluster has given a pod what it asked for
    return (
        f"{where} was to have {node.size.gpus} GPU(s), and there are {here} here -> "
        "ask for fewer, or pretend them: pretend_gpus=True, --pretend-gpus"
    )


def count_gpus() -> int:
    visible = os.environ.get(names.CUDA_VISIBLE_DEVICES)
    if visible is not None:
        return len([one for one in visible.split(",") if one.strip() not in ("", "-1")])
    return len(glob.glob("/dev/nvidia[0-9]*"))


def make_note(version: str, node: ClusterNode) -> str:
    """What people should know of this node."""
    notes = []
    if not node.index and read_version(version) < FIRST_WITH_TOKENS:
        notes.append(f"Ray {version} asks nobody for a token (2.52 and later do)")
    if not node.index and node.version and read_version(version) != read_version(node.version):
        notes.append(f"the client has Ray {node.version}, the nodes have {version}")
    if node.pretends_gpus and node.size.gpus:
        notes.append(f"the {node.size.gpus} GPU(s) of node {node.index} are pretended")
    return "; ".join(notes)


# -- starting ----------------------------------------------------------------------------------


def _prepare_process(node: ClusterNode) -> None:
    for name in node.forget:
        os.environ.pop(name, None)
    if node.pretends_gpus:  # Ray counts no more than this shows
        os.environ.pop(names.CUDA_VISIBLE_DEVICES, None)
    os.environ.update(make_auth(node.secret))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["PYTHONUNBUFFERED"] = "1"
    with contextlib.suppress(OSError):
        os.chdir(node.cwd or "/")


def _wait_for_head(address: str, node: ClusterNode, port: int) -> None:
    """Nodes may be told to join while the head still starts. Who waits is ended if there will be none.

    `ray start` finds no head before that has its agents, and looks again only two seconds later.
    """
    while not _is_open(address, port):
        time.sleep(_POLL_S)
    until_s = time.monotonic() + _AGENT_S
    while node.own_address and not _is_open(address, AGENT_PORT) and time.monotonic() < until_s:
        time.sleep(_POLL_S)


def _is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _make_folder(node: ClusterNode) -> Path:
    """Where Ray keeps its sockets, whose paths must be short: a link leads to one whose own is too long."""
    real = Path(node.folder) / f"r{node.index}-{os.getpid()}"
    real.mkdir(mode=0o700, parents=True)
    if len(os.fsencode(real)) <= _MAX_FOLDER:
        return real
    link = f"r{zlib.crc32(os.fsencode(real)):08x}"
    short = real.parent.parent / link
    if len(os.fsencode(short)) > _MAX_FOLDER:
        short = Path("/tmp") / link  # noqa: S108 - only a name for `real`
    for old in short.parent.glob("r????????"):  # of clusters that are gone
        if old.is_symlink() and not old.exists():
            with contextlib.suppress(OSError):
                old.unlink()
    short.symlink_to(real)
    return short


# -- ending ------------------------------------------------------------------------------------


def _wait_for_end(started: RayStart) -> None:
    """Until Ray's node is no more: `ray start` looks only once per second, and drivers notice before that."""
    watched = []
    for pid in (started.process.pid, *started.find_vital()):
        with contextlib.suppress(OSError, AttributeError):  # gone already; not on this system
            watched.append(os.pidfd_open(pid))
    if watched and not select.select(watched, [], [], _HELD_S)[0]:
        started.release()
        select.select(watched, [], [])
    elif not watched:
        started.release()
        started.process.wait()
