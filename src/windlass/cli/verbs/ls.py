"""`windlass ls`: list the known jobs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import click

from windlass.cli.flags import json_option, load_settings, place_options
from windlass.cli.show import print_json, print_table, render_age, shorten
from windlass.cli.verb_table import Verb
from windlass.client.jobs.find_jobs import list_jobs
from windlass.client.jobs.job import Job
from windlass.client.terminal import one_line, print_notice
from windlass.errors import JobNotFound, WindlassError, count_noun
from windlass.spec.work import Calls
from windlass.wire.states import RankState
from windlass.wire.status import JobStatus, Progress

_NUM_ENDED = 20
_NUM_THREADS = 8
_ALL_S = 8.0
_WIDEST_WORK = 60
_UNKNOWN = "unknown"  # the phase of a job that does not answer


@click.command(cls=Verb)
@click.option("--all", "-a", "show_all", is_flag=True, help="Also list older finished jobs")
@place_options
@json_option
def ls(show_all: bool, as_json: bool) -> None:
    """List jobs, newest first.

    Lists all unfinished jobs and the last 20 that ended.
    """
    jobs, silent = _read_all(list_jobs(load_settings()))
    shown = jobs if show_all else _choose(jobs)
    if as_json:
        records = [_make_record(job, status) for job, status in shown]
        print_json([*map(_make_silent_record, silent), *records])
        return
    header = ("ID", "NAME", "PHASE", "RANKS", "PROGRESS", "AGE", "WORK")
    rows = [_make_row(status) for _, status in shown]
    print_table(header, [*((job.id, "-", _UNKNOWN, *"----") for job in silent), *rows])
    if not jobs and not silent:
        print_notice("no jobs here yet; `windlass run train.py` starts one")
    elif len(shown) < len(jobs):
        print_notice(
            f"{len(jobs) - len(shown)} older jobs are not shown; `windlass ls --all` lists them"
        )


def _read_all(jobs: list[Job]) -> tuple[list[tuple[Job, JobStatus]], list[Job]]:
    """Return the jobs that answered within seconds, newest first, and those that did not."""
    answers = []
    silent = {job.id: f"it did not answer within {_ALL_S:g} s" for job in jobs}
    for job, status in _ask_all(jobs):
        if isinstance(status, WindlassError) and not isinstance(status, JobNotFound):
            silent[job.id] = status.message
            continue
        del silent[job.id]
        if isinstance(status, JobStatus):  # otherwise it has been removed meanwhile
            answers.append((job, status))
    for job_id, why in sorted(silent.items()):
        print_notice(f"{job_id} is {_UNKNOWN}: {why}")
    answers.sort(key=lambda pair: pair[1].created_at_s, reverse=True)
    return answers, [job for job in jobs if job.id in silent]


def _ask_all(jobs: list[Job]) -> Iterator[tuple[Job, JobStatus | WindlassError]]:
    waiting, answers = queue.SimpleQueue[Job](), queue.SimpleQueue[Any]()
    for job in jobs:
        waiting.put(job)

    def ask() -> None:
        while not waiting.empty():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answers.put((job, job.status()))
            except WindlassError as error:
                answers.put((job, error))

    for _ in range(min(_NUM_THREADS, len(jobs))):
        threading.Thread(target=ask, name="windlass-ls", daemon=True).start()
    end_s = time.monotonic() + _ALL_S
    for _ in jobs:
        try:
            yield answers.get(timeout=max(0.0, end_s - time.monotonic()))
        except queue.Empty:
            return


def _choose(jobs: list[tuple[Job, JobStatus]]) -> list[tuple[Job, JobStatus]]:
    ended = [job for job, status in jobs if status.phase.is_final][_NUM_ENDED:]
    return [(job, status) for job, status in jobs if job not in ended]


def _make_row(status: JobStatus) -> tuple[str, ...]:
    return (
        status.job_id,
        shorten(one_line(status.name), 32) if status.name != status.job_id else "-",
        status.phase.value,
        _render_ranks(status),
        _render_progress(status.progress),
        render_age(status.created_at_s),
        shorten(one_line(status.work), _WIDEST_WORK),
    )


def _render_progress(progress: Progress) -> str:
    if progress.step is None:
        return "-"
    steps = f"{progress.step}-{progress.max_step}" if progress.is_spread else f"{progress.step}"
    if not progress.total:
        return f"{'steps' if progress.is_spread else 'step'} {steps}"
    return f"{steps}/{progress.total} {progress.step / progress.total:.0%}"


def _render_ranks(status: JobStatus) -> str:
    """Return the running and all ranks, the ranks of an ended job, or the nodes of a compute."""
    if status.work == Calls().label:
        return count_noun(status.num_nodes, "node")
    if status.phase.is_final:
        return str(status.num_ranks)
    return f"{status.count(RankState.RUNNING)}/{status.num_ranks}"


def _make_silent_record(job: Job) -> dict[str, Any]:
    return {"job_id": job.id, "ref": str(job.ref), "phase": _UNKNOWN}


def _make_record(job: Job, status: JobStatus) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "ref": str(job.ref),
        "name": status.name,
        "phase": status.phase,
        "attempt": status.attempt,
        "num_nodes": status.num_nodes,
        "num_ranks": status.num_ranks,
        "detach": status.detach,
        "created_at_s": status.created_at_s,
        "ended_at_s": status.ended_at_s,
        "progress": status.progress,
        "work": status.work,
    }
