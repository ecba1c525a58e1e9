"""Agent as PID 1, as in a container: it reaps orphaned processes and forwards SIGTERM."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl

_UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _can_unshare() -> bool:
    found = shutil.which("unshare") is not None
    return found and subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="no PID namespaces here (unshare)")


@pytest.fixture
def contained(tmp_path) -> str:
    """Write an interpreter that starts each process as PID 1 of its own namespace."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {" ".join(_UNSHARE)} {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def _agents(home: Path) -> list[int]:
    """Return the PIDs of this home's agents, as seen from outside their namespaces."""
    outer_pids = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            is_ours = bytes(home) in (entry / "environ").read_bytes()
            pids = next(
                line.split()[1:]
                for line in (entry / "status").read_text().splitlines()
                if line.startswith("NSpid:")
            )
        except (OSError, StopIteration):
            continue
        is_agent = b".pyz\0agent\0" in command and not command.startswith(b"unshare")
        if is_agent and is_ours and pids[-1] == "1":
            outer_pids.append(int(pids[0]))
    return outer_pids


def test_agent_as_pid1_reaps_orphans(contained):
    def zombies():
        subprocess.run(["sh", "-c", "(exit 0) & (sleep 0 &) ; exit 0"])
        ours = os.environ["RANK"]
        found = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # not a process, or one that has just exited
                continue
            found += [entry.name] if fields[:2] == ["Z", "1"] else []
        return ours, found

    job = wl.submit(zombies, nodes=2, procs=2, python=contained)
    assert job.results(timeout_s=60) == [(str(rank), []) for rank in range(4)]
    assert [node.pid for node in job.status().nodes] == [1, 1]


def test_agent_as_pid1_forwards_sigterm(contained, home, tmp_path):
    flag, saved = tmp_path / "flag", tmp_path / "saved"
    job = wl.submit(work.save_on_term, (str(flag), str(saved)), python=contained)
    wait_for(flag.exists, "the rank is running")
    [pid] = _agents(home)
    os.kill(pid, signal.SIGTERM)
    assert job.wait(30).phase.value == "cancelled"
    assert saved.read_text() == "saved"


def test_cancel_leaves_no_processes(contained, tmp_path):
    job = wl.submit(
        work.spawn_children_and_hang, (str(tmp_path / "flag"),), procs=2, python=contained
    )
    wait_for(lambda: len(list(tmp_path.glob("flag-*"))) == 2, "the ranks have children")
    job.cancel()
    assert job.wait(30).phase.value == "cancelled"
