"""A verdict as text: who failed first, where, why, what became of the others, what to type next.

Pure: a JobStatus in, lines out, safe for a terminal. Colours and streams are the caller's matter; who is to
blame was decided by the agent.
"""

from __future__ import annotations

from windlass import names
from windlass.client.terminal import one_line
from windlass.wire.status import FailureKind, JobStatus, Phase, Verdict, cut_text

_MAX_EXCEPTION_LINES = 6
_MAX_LINE = 300
_LEFT_WIDTH = 56


def render_verdict(status: JobStatus, *, folder: str = "") -> str:
    """The verdict on a job, several lines; empty while there is none. Paths in `folder` are shortened."""
    verdict = status.verdict
    if verdict is None:
        return ""
    exception = _exception_lines(verdict)
    lines = [_render_head(status, verdict), _render_who(status, verdict, exception)]
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


def _render_who(status: JobStatus, verdict: Verdict, exception: list[str]) -> str:
    if verdict.rank is not None and exception and verdict.exit_code is None:
        who = f"rank {verdict.rank} on {_one_line(verdict.node_name)} raised {exception[0]}"
    else:
        who = _one_line(verdict.message)
    when = f"attempt {verdict.attempt}"
    if verdict.at_s and status.created_at_s:
        when += f", {max(0.0, verdict.at_s - status.created_at_s):.1f} s after submit"
    return f"  {who:<{_LEFT_WIDTH}}  {when}"


def _exception_lines(verdict: Verdict) -> list[str]:
    lines = [_one_line(line) for line in verdict.exception.splitlines() if line.strip()]
    left_out = len(lines) - _MAX_EXCEPTION_LINES
    if left_out > 0:
        return [*lines[:_MAX_EXCEPTION_LINES], f"... and {left_out} more lines"]
    return lines


def _render_others(verdict: Verdict) -> str:
    num_others = sum(verdict.others.values())
    states = ", ".join(f"{count} {state}" for state, count in sorted(verdict.others.items()))
    who = "the other rank" if num_others == 1 else f"the other {num_others} ranks"
    return f"{who}: {states}"


def _shorten(path: str, folder: str) -> str:
    """As users would write it: from their own folder, or from the project on the nodes."""
    path = path.removeprefix(f"{names.CODE_FOLDER}/")
    return path.removeprefix(folder.rstrip("/") + "/") if folder else path


def _one_line(text: str) -> str:
    return cut_text(one_line(text), _MAX_LINE)


def exit_code_of(status: JobStatus) -> int:
    """What a command that stands for a job exits with: 0, 1 (it failed) or 3 (no start, or not known)."""
    if status.phase is Phase.SUCCEEDED:
        return 0
    unproved = (FailureKind.START_FAILED, FailureKind.UNKNOWN)
    return 3 if status.verdict is not None and status.verdict.kind in unproved else 1
