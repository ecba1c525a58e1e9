"""Text reports on a job: its timeline, its verdict, and the reason for its current state.

The timeline lists the phases from submission through the first step to the end of the job. The verdict names
the rank that failed first, where and why. It also reports the state of the other ranks and suggests the next
command. `explain` returns one sentence with details and advice, for any engine.

Performs no I/O: it renders a JobStatus (and the time) as text that is safe for a terminal. Engines report
blockers as conditions of type `blocker`. The agent determines which rank caused the failure. Callers choose
the colors and the output stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from windlass import names
from windlass.client.jobs.live_view import render_progress
from windlass.client.terminal import clean, one_line, render_seconds
from windlass.kube.diagnosis.blocker import CONDITION
from windlass.wire.states import MomentName, NodeState, RankState
from windlass.wire.status import Condition, FailureKind, JobStatus, Phase, Verdict, cut_text

_MAX_EXCEPTION_LINES = 6
_MAX_LINE = 300
_LEFT_WIDTH = 56
_SILENT_S = 60.0
_FAR_BEHIND = 2
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """One phase, with its duration and the time it was reached since submit, both in seconds."""

    name: str
    took_s: float
    since_submit_s: float


def make_timeline_rows(status: JobStatus) -> tuple[TimelineRow, ...]:
    """Return the phases in chronological order, from the submission to the end of the job.

    Machine clocks disagree slightly, and API server timestamps have a resolution of one second. A moment that
    appears to precede the submission is set to the submission's time. An end that appears to precede another
    moment is set to that moment's time.
    """
    # a stable sort keeps the order of moments with the same time
    in_order = sorted(
        status.timeline, key=lambda moment: (moment.name != MomentName.SUBMITTED, moment.at_s)
    )
    moments: list[tuple[float, str]] = [(moment.at_s, moment.name) for moment in in_order]
    if status.ended_at_s is not None:
        moments.append((status.ended_at_s, status.phase.value))
    if not moments:
        return ()
    first_s = before_s = moments[0][0]
    rows = []
    for at_s, name in moments:
        took_s, before_s = max(0.0, at_s - before_s), max(at_s, before_s)
        rows.append(TimelineRow(name=name, took_s=took_s, since_submit_s=before_s - first_s))
    return tuple(rows)


def render_timeline(status: JobStatus) -> str:
    """Return the table of phases, or an empty string if there are none yet."""
    rows = make_timeline_rows(status)[1:]
    if not rows:
        return ""
    width = max(len("phase"), *(len(row.name) for row in rows))
    lines = [f"  {'phase':<{width}}  {'took':>9}  {'since submit':>12}"]
    for row in rows:
        took, since = f"{row.took_s:.2f} s", f"{row.since_submit_s:.2f} s"
        lines.append(f"  {row.name:<{width}}  {took:>9}  {since:>12}")
    return "\n".join(lines)


def render_verdict(status: JobStatus, *, folder: str = "") -> str:
    """Return the verdict on a job as several lines, or an empty string. Paths in `folder` are shortened."""
    verdict = status.verdict
    if verdict is None:
        return ""
    exception = _exception_lines(verdict)
    lines = [_render_head(status, verdict), _render_cause(status, verdict, exception)]
    lines += [f"    {line}" for line in exception[1:]]
    if verdict.where:
        where = f"{_shorten(verdict.file, folder)}:{verdict.line}"
        lines.append(f"  {_one_line(where)}    {_one_line(verdict.source)}".rstrip())
    if verdict.note and verdict.note not in lines[1]:
        lines.append(f"  {_one_line(verdict.note)}")
    if verdict.others:
        lines.append(f"  {_render_others(verdict)}")
    for before in status.history:
        lines.append(f"  before that, attempt {before.attempt}: {_one_line(before.message)}")
    if verdict.next:
        lines.append(f"  next: {_one_line(verdict.next)}")
    return "\n".join(lines)


def _render_head(status: JobStatus, verdict: Verdict) -> str:
    name = f" ({_one_line(status.name)})" if status.name != status.job_id else ""
    job = f"job {status.job_id}{name}"
    if verdict.kind is FailureKind.CANCELLED:
        return f"✗ {job} was cancelled"
    if verdict.kind is FailureKind.UNKNOWN:
        return f"? {job} has ended: {verdict.kind.value}"
    # a verdict is known before the last rank has stopped
    tense = "failed" if status.phase.is_final else "is failing"
    return f"✗ {job} {tense}: {_render_kind(verdict)}"


def _render_kind(verdict: Verdict) -> str:
    if verdict.kind is FailureKind.KILLED and verdict.signal:
        return f"killed by {verdict.signal}"
    return verdict.kind.value


def _render_cause(status: JobStatus, verdict: Verdict, exception: list[str]) -> str:
    if verdict.rank is not None and exception and verdict.exit_code is None:
        cause = f"rank {verdict.rank} on {_one_line(verdict.node_name)} raised {exception[0]}"
    else:
        cause = _one_line(verdict.message)
    when = f"attempt {verdict.attempt}"
    if verdict.at_s and status.created_at_s:
        when += f", {max(0.0, verdict.at_s - status.created_at_s):.1f} s after submit"
    return f"  {cause:<{_LEFT_WIDTH}}  {when}"


def _exception_lines(verdict: Verdict) -> list[str]:
    lines = [_one_line(line) for line in verdict.exception.splitlines() if line.strip()]
    left_out = len(lines) - _MAX_EXCEPTION_LINES
    if left_out > 0:
        return [*lines[:_MAX_EXCEPTION_LINES], f"... and {left_out} more lines"]
    return lines


def _render_others(verdict: Verdict) -> str:
    num_others = sum(verdict.others.values())
    states = ", ".join(f"{count} {state}" for state, count in sorted(verdict.others.items()))
    others = "the other rank" if num_others == 1 else f"the other {num_others} ranks"
    return f"{others}: {states}"


def _shorten(path: str, folder: str) -> str:
    """Return a path relative to the user's folder, or to the project on the nodes."""
    path = path.removeprefix(f"{names.CODE_FOLDER}/")
    return path.removeprefix(folder.rstrip("/") + "/") if folder else path


def _one_line(text: str) -> str:
    return cut_text(one_line(text), _MAX_LINE)


def exit_code_of(status: JobStatus) -> int:
    """Return the exit status for a job: 0, 1 if it failed, or 3 if it did not start or its end is unknown."""
    if status.phase is Phase.SUCCEEDED:
        return 0
    undecided = (FailureKind.START_FAILED, FailureKind.UNKNOWN)
    return 3 if status.verdict is not None and status.verdict.kind in undecided else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """An explanation in one sentence. `reason` is for programs, and `next` is the recommended action."""

    job_id: str
    phase: str
    reason: str
    sentence: str
    since_s: float
    details: tuple[str, ...] = ()
    next: str = ""


def explain(status: JobStatus, *, now_s: float, folder: str = "") -> Why:
    """Return why this job waits, runs, failed or ended. Paths in `folder` are shortened."""
    if status.phase.is_final:
        return _explain_end(status, folder)
    if blockers := [c for c in status.conditions if c.type == CONDITION]:
        return _explain_blocked(status, blockers, now_s)
    if status.phase is Phase.RUNNING:
        return _explain_running(status, now_s)
    return _explain_phase(status, now_s)


def _explain_blocked(status: JobStatus, blockers: list[Condition], now_s: float) -> Why:
    first, *others = blockers
    state = f"is {status.phase.value}"
    if first.since_s:
        state = f"has been {status.phase.value} for {render_seconds(now_s - first.since_s)}"
    details = [f"also: {c.text}" for c in others]
    details += _describe_nodes(status)
    return _make(
        status,
        reason=first.reason,
        sentence=f"{_name(status)} {state}: {first.message}",
        since_s=first.since_s,
        details=[*details, *_describe_milestones(status, now_s)],
        hint=first.hint,
    )


def _explain_phase(status: JobStatus, now_s: float) -> Why:
    """Explain a job that is pending, starting or stopping without a known blocker."""
    last = _last_condition(status)
    since_s = last.since_s if last else status.created_at_s
    words = f": {last.message}" if last and last.message else ""
    missing = _describe_nodes(status)
    if not words and missing:
        words = f": {missing.pop(0)}"
    return _make(
        status,
        reason=last.reason if last else "",
        sentence=f"{_name(status)} has been {status.phase.value} for "
        f"{render_seconds(now_s - since_s)}{words}",
        since_s=since_s,
        details=[*missing, *_describe_milestones(status, now_s)],
        hint=f"`windlass attach {_address(status)}` watches it; "
        f"`windlass cancel {_address(status)}` stops it",
    )


def _explain_running(status: JobStatus, now_s: float) -> Why:
    last = _last_condition(status)
    since_s = last.since_s if last else status.created_at_s
    parts = render_progress(status.progress, now_s=now_s)
    states = Counter(rank.state for rank in status.ranks)
    ranks = ", ".join(f"{count} {state}" for state, count in states.most_common())
    attempt = f", attempt {status.attempt}" if status.attempt else ""
    words = _waits_for(status, now_s) or " · ".join(parts) or f"{status.num_ranks} ranks: {ranks}"
    details = [
        *([f"ranks: {ranks}"] if ranks else []),
        *(f"progress: {p}" for p in [" · ".join(parts)] if p),
    ]
    details += _describe_history(status)
    details += [f"also: {c.text}" for c in status.conditions if c.type == "warning"]
    return _make(
        status,
        reason=last.reason if last else "",
        sentence=f"{_name(status)} has been running for {render_seconds(now_s - since_s)}{attempt}: {words}",
        since_s=since_s,
        details=[*details, *_describe_nodes(status)],
        hint=f"windlass logs {_address(status)} -f",
    )


def _address(status: JobStatus) -> str:
    """Return the job's name for commands, with the engine if Windlass did not create the job."""
    is_adopted = any(each.reason == names.REASON_ADOPTED for each in status.conditions)
    return f"{status.job_id} -e {status.engine}" if is_adopted else status.job_id


def _waits_for(status: JobStatus, now_s: float) -> str:
    """Return the reason why a running job waits, if known: imports, lagging ranks, or missing reports."""
    last = _last_condition(status)
    if last is not None and last.reason in (names.REASON_READY, names.REASON_ADOPTED):
        return last.message  # computes and adopted jobs have no ranks
    if all(moment.name != "imports done" for moment in status.timeline):
        return f"importing{f' ({last.message})' if last and last.message else ''}"
    running = [rank.rank for rank in status.ranks if rank.state == RankState.RUNNING]
    done = [rank.rank for rank in status.ranks if rank.state == RankState.RETURNED]
    if done and running:
        gone, left = f"{_ranks(done)} ha{'s' if len(done) == 1 else 've'}", _ranks(running)
        run = "runs" if len(running) == 1 else "run"
        return f"{gone} returned, and {left} still {run}, perhaps in a collective without {_ranks(done)}"
    steps = {rank.rank: rank.step for rank in status.ranks if rank.step is not None}
    if steps and max(steps.values()) - min(steps.values()) >= _FAR_BEHIND:
        slow = [rank for rank, step in steps.items() if step == min(steps.values())]
        return (
            f"{_ranks(slow)} {'is' if len(slow) == 1 else 'are'} behind, at step "
            f"{min(steps.values())}; the furthest is at {max(steps.values())}"
        )
    silent_s = now_s - status.progress.at_s
    if status.progress.at_s and silent_s >= _SILENT_S:
        return f"no report for {render_seconds(silent_s)}, the last at step {status.progress.step}"
    return ""


def _explain_end(status: JobStatus, folder: str) -> Why:
    took = ""
    if status.ended_at_s is not None:
        took = f" after {render_seconds(status.ended_at_s - status.created_at_s)}"
    last, verdict = _last_condition(status), status.verdict
    reason = last.reason if last else ""
    since_s = status.ended_at_s or 0.0
    if status.phase is Phase.SUCCEEDED:
        words = f": {last.message}" if last and last.message else ""
        return _make(
            status,
            reason=reason,
            sentence=f"{_name(status)} succeeded{took}{words}",
            since_s=since_s,
            details=_describe_history(status),
            hint=f"windlass {'logs' if reason == names.REASON_ADOPTED else 'result'} {_address(status)}",
        )
    how = {Phase.CANCELLED: "was cancelled", Phase.ENDED: "has ended"}.get(status.phase, "failed")
    kind = ""
    if verdict is not None and status.phase is Phase.FAILED:
        kind = f" ({verdict.kind.value})"
    message = verdict.message if verdict else last.message if last else ""
    return _make(
        status,
        reason=reason,
        sentence=f"{_name(status)} {how}{took}{kind}{f': {message}' if message else ''}",
        since_s=since_s,
        details=render_verdict(status, folder=folder).splitlines()[2:],  # the sentence has the rest
        hint=verdict.next if verdict else f"windlass logs {status.job_id}",
    )


def _make(
    status: JobStatus, *, reason: str, sentence: str, since_s: float, details: list[str], hint: str
) -> Why:
    return Why(
        job_id=status.job_id,
        phase=status.phase.value,
        reason=reason,
        sentence=one_line(sentence),
        since_s=since_s,
        details=tuple(
            clean(line, color=False).rstrip() for line in details if not line.startswith("  next: ")
        ),
        next=one_line(hint),
    )


def _name(status: JobStatus) -> str:
    name = f" ({status.name})" if status.name != status.job_id else ""
    return f"{status.job_id}{name}"


def _last_condition(status: JobStatus) -> Condition | None:
    """Return the last condition that explains the current phase."""
    return next((c for c in reversed(status.conditions) if c.type == status.phase.value), None)


def _describe_nodes(status: JobStatus) -> list[str]:
    """Describe missing nodes, if any."""
    missing = [
        node
        for node in status.nodes
        if node.state in (NodeState.PENDING, NodeState.LEFT, NodeState.LOST)
    ]
    if not missing:
        return []
    named = ", ".join(f"{node.name} {node.state}" for node in missing[:_MAX_NAMED])
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    return [f"{len(missing)} of {status.num_nodes} nodes are missing: {named}{more}"]


def _describe_milestones(status: JobStatus, now_s: float) -> Iterator[str]:
    """Describe the phases so far, and the time since submit."""
    rows = [row for row in make_timeline_rows(status) if row.name != MomentName.SUBMITTED]
    reached = ", ".join(f"{row.name} {row.since_submit_s:.1f} s" for row in rows)
    age = render_seconds(now_s - status.created_at_s)
    yield f"submitted {age} ago{f'; since submit: {reached}' if reached else ''}"


def _describe_history(status: JobStatus) -> list[str]:
    return [f"before that, attempt {v.attempt}: {one_line(v.message)}" for v in status.history]


def _ranks(ranks: list[int]) -> str:
    named = ", ".join(map(str, ranks[:_MAX_NAMED]))
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"
