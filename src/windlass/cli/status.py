"""`windlass status`: everything that is known of one job now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click

from windlass import records
from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import (
    one_line,
    print_json,
    print_pairs,
    render_age,
    render_clock,
    render_span,
)
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.live_view import render_progress
from windlass.observe.timeline import render_timeline
from windlass.observe.verdict import render_verdict
from windlass.settings import start_folder
from windlass.spec.work import Calls
from windlass.wire.status import JobStatus

_MAX_NODES = 32


@click.command()
@job_argument
@json_option
def status(job_text: str, as_json: bool) -> None:
    """Show where JOB is: phase, nodes, ranks, progress, verdict, timeline."""
    job = find_job(job_text, load_settings())
    found = job.status()
    if as_json:
        print_json({"ref": str(job.ref), **records.to_json(found)})
        return
    print_pairs(_make_pairs(found))
    for text in (render_verdict(found, folder=str(start_folder())), render_timeline(found)):
        if text:
            click.echo(f"\n{text}")


def _make_pairs(found: JobStatus) -> Iterator[tuple[str, str]]:
    yield "job", found.job_id
    yield "name", one_line(found.name) if found.name != found.job_id else ""
    yield "phase", f"{found.phase.value}{_render_reason(found)}"
    yield "work", one_line(found.work)
    yield "engine", f"{found.engine}, {'detached' if found.detach else 'attached'}"
    yield "started", f"{render_clock(found.created_at_s)} ({render_age(found.created_at_s)} ago)"
    yield (
        "took" if found.ended_at_s else "so far",
        render_span(found.created_at_s, found.ended_at_s),
    )
    if found.attempt or found.restarts:
        yield "attempt", str(found.attempt)
    yield "ranks", _render_ranks(found)
    yield "progress", one_line("  ".join(render_progress(found.progress)))
    yield "nodes", _render_nodes(found)
    yield "earlier", "\n".join(f"attempt {v.attempt}: {one_line(v.message)}" for v in found.history)
    for label, kind in (("blocked", "blocker"), ("warnings", "warning")):
        messages = [c.message for c in found.conditions if c.type == kind]
        yield label, "\n".join(map(one_line, messages))


def _render_reason(found: JobStatus) -> str:
    """Why it is in this phase; a verdict says it better."""
    if found.verdict is not None or not found.conditions:
        return ""
    last = [c for c in found.conditions if c.type == found.phase.value][-1:]
    return f" ({last[0].reason}: {one_line(last[0].message)})" if last else ""


def _render_ranks(found: JobStatus) -> str:
    if found.work == Calls().label:  # each call brings its own
        return ""
    states = Counter(rank.state for rank in found.ranks)
    counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"{found.num_ranks}: {counted}" if counted else str(found.num_ranks)


def _render_span(ranks: list[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def _render_nodes(found: JobStatus) -> str:
    lines = []
    for node in found.nodes[:_MAX_NODES]:
        ranks = [rank.rank for rank in found.ranks if rank.node == node.index]
        span = "" if found.work == Calls().label else f", {_render_span(ranks)}"
        python = f", Python {node.python}" if node.python else ""
        pid = f", pid {node.pid}" if node.pid and not found.phase.is_final else ""
        host = f" on {node.host}" if node.host else ""
        lines.append(f"{node.name}: {node.state}{host}{span}{python}{pid}")
    if len(found.nodes) > _MAX_NODES:
        lines.append(f"and {len(found.nodes) - _MAX_NODES} more (--json shows all)")
    return "\n".join(lines)
