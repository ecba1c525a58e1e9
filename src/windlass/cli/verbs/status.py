"""`windlass status` and `windlass why`: the state of one job, and the reason for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import click

from windlass import names, records
from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json, print_pairs, render_age, render_clock, render_span
from windlass.cli.verb_table import Verb
from windlass.client.compute.nodes.find_computes import explain_by
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.live_view import render_progress
from windlass.client.terminal import one_line
from windlass.observe.explain import explain, render_timeline, render_verdict
from windlass.settings import start_folder
from windlass.spec.work import Calls
from windlass.wire.status import JobStatus

_MAX_NODES = 32


@click.command(cls=Verb)
@job_argument
@json_option
def status(job_text: str, as_json: bool) -> None:
    """Show the state of JOB.

    Prints its phase, nodes, ranks, progress, verdict and timeline.
    """
    job = find_job(job_text, load_settings())
    known = job.status()
    if as_json:
        print_json({"ref": str(job.ref), **records.to_json(known)})
        return
    print_pairs(_make_pairs(known))
    for text in (render_verdict(known, folder=str(start_folder())), render_timeline(known)):
        if text:
            click.echo(f"\n{text}")


def _make_pairs(status: JobStatus) -> Iterator[tuple[str, str]]:
    yield "job", status.job_id
    yield "name", one_line(status.name) if status.name != status.job_id else ""
    yield "phase", f"{status.phase.value}{_render_reason(status)}"
    yield "work", one_line(status.work)
    yield "engine", f"{status.engine}, {'detached' if status.detach else 'attached'}"
    yield "started", f"{render_clock(status.created_at_s)} ({render_age(status.created_at_s)} ago)"
    yield (
        "took" if status.ended_at_s else "so far",
        render_span(status.created_at_s, status.ended_at_s),
    )
    if status.attempt or status.restarts:
        yield "attempt", str(status.attempt)
    yield "ranks", _render_ranks(status)
    yield "progress", one_line("  ".join(_render_progress(status)))
    yield "nodes", _render_nodes(status)
    yield (
        "earlier",
        "\n".join(f"attempt {v.attempt}: {one_line(v.message)}" for v in status.history),
    )
    for label, kind in (("blocked", "blocker"), ("warnings", "warning")):
        messages = [c.text for c in status.conditions if c.type == kind]
        yield label, "\n".join(map(one_line, messages))


def _render_reason(status: JobStatus) -> str:
    """Return the reason for the phase. Empty if there is a verdict, which explains it better."""
    if status.verdict is not None or not status.conditions:
        return ""
    last = [c for c in status.conditions if c.type == status.phase.value][-1:]
    return f" ({last[0].reason}: {one_line(last[0].message)})" if last else ""


def _render_progress(status: JobStatus) -> list[str]:
    now_s = None if status.phase.is_final else time.time()
    return render_progress(status.progress, now_s=now_s)


def _render_ranks(status: JobStatus) -> str:
    if _has_no_ranks(status):
        return ""
    states = Counter(rank.state for rank in status.ranks)
    counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"{status.num_ranks}: {counted}" if counted else str(status.num_ranks)


def _has_no_ranks(status: JobStatus) -> bool:
    """Return whether ranks are unknown: calls of a compute bring their own, and adopted jobs show none."""
    is_adopted = any(each.reason == names.REASON_ADOPTED for each in status.conditions)
    return status.work == Calls().label or is_adopted


def _render_span(ranks: list[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def _render_nodes(status: JobStatus) -> str:
    lines = []
    for node in status.nodes[:_MAX_NODES]:
        ranks = [rank.rank for rank in status.ranks if rank.node == node.index]
        span = "" if _has_no_ranks(status) else f", {_render_span(ranks)}"
        python = f", Python {node.python}" if node.python else ""
        pid = f", pid {node.pid}" if node.pid and not status.phase.is_final else ""
        host = f" on {node.host}" if node.host else ""
        lines.append(f"{node.name}: {node.state}{host}{span}{python}{pid}")
    if len(status.nodes) > _MAX_NODES:
        lines.append(f"and {len(status.nodes) - _MAX_NODES} more (--json shows all)")
    return "\n".join(lines)


@click.command(cls=Verb)
@job_argument
@json_option
def why(job_text: str, as_json: bool) -> None:
    """Explain in one sentence why JOB is pending, what it waits for, or why it failed."""
    settings = load_settings()
    job = find_job(job_text, settings)
    status = explain_by(job.ref, settings)(job.status())
    explanation = explain(status, now_s=time.time(), folder=str(start_folder()))
    if as_json:
        print_json({"ref": str(job.ref), **records.to_json(explanation)})
        return
    click.echo(explanation.sentence)
    for line in explanation.details:
        click.echo(f"  {line.strip()}")
    if explanation.next:
        click.echo(f"  next: {one_line(explanation.next)}")
