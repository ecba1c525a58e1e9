"""Cases on this machine: edit and call, empty calls, large arguments, eight nodes."""

from __future__ import annotations

from contextlib import ExitStack

from warm_case import Line
from warm_memory import watched
from warm_peer import Peer, Start, Torchrun
from warm_setup import (
    FORKS,
    KEPT,
    Contestant,
    Setup,
    missing,
    open_all,
    ours,
    take_turns,
    time_edits,
)

RAY, RAY_FRESH, MONARCH = "ray, kept actors", "ray, working_dir", "monarch"
# by ranks: Windlass's maximum time, and how many times as long torchrun must take
_EDIT_LIMITS_S = {8: 0.25}
_EDIT_TIMES = {8: 60.0}


def peers(setup: Setup, ranks: int) -> list[Start]:
    """Return Monarch and Ray with kept processes, if they are installed."""
    args = ["--ranks", str(ranks)]
    found = []
    if setup.pythons["monarch"]:
        found.append(setup.start(MONARCH, "warm_monarch.py", args))
    if setup.pythons["ray"]:
        found.append(setup.start(RAY, "warm_ray.py", args))
    return found


def measure_edit(setup: Setup, ranks: int) -> list[Line]:
    """Measure from the edit of one line to the slowest rank's first all-reduce."""
    case = f"edit to first all-reduce, {ranks} ranks"
    starts = [ours(setup, ranks=ranks), ours(setup, ranks=ranks, kept=True), *peers(setup, ranks)]
    if setup.pythons["ray"]:
        args = ["--ranks", str(ranks), "--fresh"]
        starts.append(setup.start(RAY_FRESH, "warm_ray.py", args))
    torchrun = Torchrun(setup.torchrun, setup.make_project(), ranks)
    with ExitStack() as stack:
        contestants: list[Contestant] = [*open_all(stack, starts), torchrun]
        found = time_edits(setup, contestants, case, "first_all_reduce")
    limit_s, times = _EDIT_LIMITS_S.get(ranks), _EDIT_TIMES.get(ranks)
    lines = [
        Line(case=case, who=FORKS, seconds=found[FORKS], limit_s=limit_s),
        Line(case=case, who="torchrun", seconds=found["torchrun"], against=FORKS, times=times),
    ]
    if RAY_FRESH in found:
        lines.append(Line(case=case, who=RAY_FRESH, seconds=found[RAY_FRESH], against=FORKS))
    lines.append(Line(case=case, who=KEPT, seconds=found[KEPT]))
    lines += [
        Line(case=case, who=name, seconds=found[name], against=KEPT)
        for name in (MONARCH, RAY)
        if name in found
    ]
    return [*lines, *missing(setup, case, ["monarch", "ray"])]


def measure_empty(setup: Setup) -> list[Line]:
    """Measure a call that does nothing, on two ranks."""
    case = "empty call, 2 ranks"
    starts = [ours(setup, ranks=2), ours(setup, ranks=2, kept=True), *peers(setup, 2)]
    with ExitStack() as stack:
        found = time_empty(setup, open_all(stack, starts), case)
    lines = [
        Line(case=case, who=KEPT, seconds=found.pop(KEPT), limit_s=0.0005),
        Line(case=case, who=FORKS, seconds=found.pop(FORKS), limit_s=0.040),
        *(Line(case=case, who=name, seconds=found[name], against=KEPT) for name in found),
    ]
    return [*lines, *missing(setup, case, ["monarch", "ray"])]


def time_empty(setup: Setup, peers: list[Peer], case: str) -> dict[str, list[float]]:
    return take_turns(peers, setup.rounds, case, lambda peer: peer.ask("empty", num=setup.calls))


def measure_arguments(setup: Setup) -> list[Line]:
    """Measure arguments of ten megabytes and a gigabyte, to two kept ranks."""
    starts = [ours(setup, ranks=2, kept=True), *peers(setup, 2)]
    lines = []
    with ExitStack() as stack:
        contestants = open_all(stack, starts)
        for num_bytes in (10 << 20, setup.big_bytes):
            lines += time_argument(setup, contestants, num_bytes, "to 2 ranks")
    return [*lines, *missing(setup, lines[-1].case, ["monarch", "ray"])]


def time_argument(setup: Setup, peers: list[Peer], num_bytes: int, where: str) -> list[Line]:
    """Measure calls with an array, and the first call's peak memory without the array itself.

    Later calls reuse the memory of the first.
    """
    case = f"an array of {num_bytes >> 20} MiB as argument, {where}"
    taken: dict[str, int] = {}

    def measure(peer: Peer) -> list[float]:
        with watched() as peak:
            seconds = peer.ask("argument", num_bytes=num_bytes)
        taken.setdefault(peer.name, max(0, peak[0] - num_bytes))
        return seconds

    rounds = setup.rounds if num_bytes <= 100 << 20 else min(setup.rounds, 3)
    found = take_turns(peers, rounds, case, measure)
    return [
        Line(
            case=case, who=name, seconds=seconds, grown_bytes=taken[name],
            against="" if name == KEPT else KEPT,
        )
        for name, seconds in found.items()
    ]  # fmt: skip


def measure_spread(setup: Setup) -> list[Line]:
    """Measure from the edit of one file until a rank on each of eight nodes runs it."""
    case = "edit to running ranks, 8 nodes"
    with ExitStack() as stack:
        contestants = open_all(stack, [ours(setup, ranks=8, nodes=8)])
        found = time_edits(setup, contestants, case, "running")
    return [Line(case=case, who=FORKS, seconds=found[FORKS], limit_s=0.2)]
