"""`windlass why` on the command line, on the local engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli.process import Ran

Cli = Callable[..., Ran]


def test_a_failure(windlass: Cli) -> None:
    job = windlass("run", "work.py::fail", "--procs", "2").job_id
    ran = windlass("why", job)
    assert ran.code == 0
    first, *rest = ran.out.splitlines()
    assert first.startswith(f"{job} failed after ")
    assert "(user error): rank 1 on" in first
    assert "ValueError: boom" in first
    assert any(line.startswith("  next: windlass logs") for line in rest)
    assert "\x1b" not in ran.out
    found = windlass("why", job, "--json").json
    assert (found["phase"], found["reason"]) == ("failed", "RankFailed")
    assert found["ref"] == f"local://{job}"


def test_a_success(windlass: Cli) -> None:
    job = windlass("run", "work.py::add", "1", "--procs", "2").job_id
    ran = windlass("why", job)
    assert ran.code == 0
    assert "succeeded after" in ran.out
    assert "all 2 ranks returned" in ran.out
    assert f"next: windlass result {job}" in ran.out


def test_running_job(windlass: Cli, running: Callable[..., str]) -> None:
    job = running("stay", "--procs", "2")
    ran = windlass("why", job)
    assert ran.code == 0
    assert ran.out.startswith(f"{job} ")
    assert "has been running for" in ran.out
    assert windlass("why", job, "--json").json["phase"] == "running"
    assert windlass("cancel", job).code == 0
    assert "was cancelled" in windlass("why", job).out


def test_unknown_job(windlass: Cli) -> None:
    ran = windlass("why", "nothing-here")
    assert ran.code == 2
    assert "nothing-here" in ran.err


MISMATCH = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
"""


def test_verdict_names_both_ranks_of_a_skipped_collective(windlass: Cli, project: Path) -> None:
    """Rank 0 loses its peer because rank 1 has returned."""
    (project / "mismatch.py").write_text(MISMATCH)
    ran = windlass("run", "mismatch.py", "--procs", "2", "--peer-wait", "1s")
    assert ran.code == 1
    assert "rank 1 had already returned when rank 0 lost its peer" in ran.err
    why = windlass("why", ran.job_id)
    assert "rank 1 had already returned when rank 0 lost its peer" in why.out
