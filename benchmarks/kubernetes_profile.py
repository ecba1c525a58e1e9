"""Where the time of our own start goes: the client's steps, the cluster's, the pods' and the ranks'.

Medians of some runs, in the order in which things happened. The cluster's moments are when news of them
came to a watch of this process; those of pods and ranks are their own. The floor's are beside them: what
it does not do, only we do.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kubernetes_contestants import (
    FIRST,
    HERE,
    Contestant,
    Setup,
    make_contestants,
    make_sample,
    remove_windlass,
    run_windlass,
    run_words,
)

from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.engine_table import load_dialect
from windlass.kube.client.api import Api
from windlass.kube.objects.fields import container_of
from windlass.kube.objects.kinds import EVENTS, PODS, ObjectKind

# name -> seconds since the exec of the command; or of the client's processor time
Moments = dict[str, float]

_RANK_WORDS = {
    "container": "its first process starts",
    "parent": "fork server starts",
    "process": "rank is forked",
    "script": "script begins",
    "imported": "script has imported torch",
    "group": "process group is there",
    "reduced": "first all-reduce",
}


def profile(setup: Setup, runs: int, *, engine: str) -> tuple[str, dict[str, Any]]:
    """A warm-up, then ours and the floor in turn: as tables, and as all that was seen."""
    floor = make_contestants(setup)["floor"]
    if floor is None:
        raise AssertionError("an Indexed Job needs nothing")
    ours: list[Moments] = []
    client_cpu: list[Moments] = []
    peers: list[Moments] = []
    imports: list[Mapping[str, float]] = []
    for number in range(runs + 1):
        moments, cpu, trace = trace_ours(setup, load_dialect(engine))
        beside = trace_floor(setup, floor)
        if number:
            ours.append(moments)
            client_cpu.append(cpu)
            peers.append(beside)
            imports.append({**trace["import_s"], "(the whole client, cpu)": trace["cpu_s"]})
        pair = [max(at_s for name, at_s in m.items() if "rank" in name) for m in (moments, beside)]
        print("run {}: {:.3f} s, the floor {:.3f} s".format(number, *pair), file=sys.stderr)
    tables = "\n\n".join(
        (
            "## windlass\n\n" + render_moments(ours, client_cpu),
            "## the floor\n\n" + render_moments(peers),
            "## loading modules in the client\n\n" + render_imports(imports),
        )
    )
    return tables, {"ours": ours, "cpu": client_cpu, "floor": peers, "imports": imports}


def trace_ours(setup: Setup, dialect: Dialect) -> tuple[Moments, Moments, dict[str, Any]]:
    """One traced run: what happened when, the client's processor time by then, and its own trace."""
    trace_file = setup.home / "trace.json"
    program = [sys.executable, str(HERE / "kubernetes_trace.py")]
    words = run_words(setup, FIRST, engine=dialect.name)
    with watched(setup.place.api, dialect) as seen:
        began_s, stamps, job = run_windlass(
            setup, [*program, *words], engine=dialect.name, env={"BENCH_TRACE": str(trace_file)}
        )
    trace: dict[str, Any] = json.loads(trace_file.read_text())
    status = json.loads((setup.home / dialect.name / job / "status.json").read_text())
    remove_windlass(setup, job, engine=dialect.name)
    make_sample("windlass", began_s, stamps, num=setup.num_ranks)
    moments = {
        "client: Python is up": trace["up_s"],
        **_span_moments(trace["spans"], "began_s", "ended_s"),
        **seen,
        **{f"lead: {m['name']}": m["at_s"] for m in _told_by_lead(status["timeline"])},
        **_rank_moments(stamps),
    }
    cpu = _span_moments(trace["spans"], "cpu_before_s", "cpu_after_s")
    return {name: at_s - began_s for name, at_s in moments.items()}, cpu, trace


def trace_floor(setup: Setup, floor: Contestant) -> Moments:
    with watched(setup.place.api, KUBERNETES) as seen:
        sample = floor.measure(setup)
    moments = {**seen, **_rank_moments(sample.stamps)}
    last_s = max(stamp["reduced"] for stamp in sample.stamps)
    return {
        name.replace("first all-reduce", "torch is imported"): at_s - sample.began_s
        for name, at_s in moments.items()
        if at_s <= last_s
    }


def _told_by_lead(timeline: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Moments of the lead's own clock; the API server's have whole seconds, so they are left out."""
    named = ("agent up", "nodes joined", "imports done", "ranks running")
    return [moment for moment in timeline if moment["name"] in named]


def _span_moments(spans: Iterable[Mapping[str, Any]], before: str, after: str) -> Moments:
    """Beginning and end of each span; what happens more than once is numbered."""
    found: Moments = {}
    times: dict[str, int] = {}
    for span in spans:
        name = str(span["name"])
        times[name] = times.get(name, 0) + 1
        label = name if times[name] == 1 else f"{name} #{times[name]}"
        found[f"client: {label}: begins"] = span[before]
        if span["ended_s"] is not None:
            found[f"client: {label}: done"] = span[after]
    return found


def _rank_moments(stamps: Iterable[Mapping[str, float]]) -> Moments:
    return {
        f"rank {int(stamp['rank'])}: {words}": stamp[key]
        for stamp in stamps
        for key, words in _RANK_WORDS.items()
        if key in stamp
    }


# -- the cluster ---------------------------------------------------------------------------------


@contextmanager
def watched(api: Api, dialect: Dialect) -> Iterator[Moments]:
    """When news of pods arrived, filled while the block runs."""
    seen: Moments = {}
    stop = threading.Event()
    threads = [
        threading.Thread(target=_watch, args=(api, dialect, kind, stop, seen), daemon=True)
        for kind in (PODS, EVENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=10.0)


def _watch(
    api: Api,
    dialect: Dialect,
    kind: ObjectKind,
    stop: threading.Event,
    seen: Moments,
) -> None:
    is_new = False  # what was there before belongs to an earlier run
    for change, thing in api.watch(kind, stop=stop):
        now_s = time.time()
        if change == "SYNCED":
            is_new = True
        elif is_new and change != "DELETED":
            for name in _read_pod(thing, dialect) if kind is PODS else _read_event(thing, dialect):
                seen.setdefault(name, now_s)


def _read_pod(pod: Mapping[str, Any], dialect: Dialect) -> Iterator[str]:
    index = dialect.index_of(pod)
    yield f"pod {index}: created"
    if pod["spec"].get("nodeName"):
        yield f"pod {index}: scheduled"
    if container_of(pod).get("state", {}).get("running"):
        yield f"pod {index}: known to run"


def _read_event(event: Mapping[str, Any], dialect: Dialect) -> Iterator[str]:
    name = str(event["involvedObject"].get("name", ""))
    parts = name.split("-")
    jobs = ("-".join(parts[:end]) for end in range(1, len(parts)))  # which of them is not told
    index = next((i for job in jobs if (i := dialect.index_in_name(name, job)) is not None), None)
    if index is not None and event.get("reason") in ("Pulled", "Created", "Started"):
        yield f"pod {index}: event {event['reason']}"


# -- showing -------------------------------------------------------------------------------------


def render_moments(found: list[Moments], cpu: list[Moments] | None = None) -> str:
    """Each moment's median, in order; what not every run had is left out."""
    medians, cpu_medians = _medians(found), _medians(cpu or [{}])
    lines = ["| at | after | client's cpu | what |", "|--:|--:|--:|---|"]
    before_s = 0.0
    for name, at_s in sorted(medians.items(), key=lambda item: item[1]):
        used = f"{cpu_medians[name] * 1e3:.0f}" if name in cpu_medians else ""
        lines.append(f"| {at_s * 1e3:.0f} ms | +{(at_s - before_s) * 1e3:.0f} | {used} | {name} |")
        before_s = at_s
    return "\n".join(lines)


def _medians(found: list[Moments]) -> Moments:
    names = [name for name in found[0] if all(name in moments for moments in found)]
    return {name: statistics.median(moments[name] for moments in found) for name in names}


def render_imports(found: list[Mapping[str, float]]) -> str:
    """Each package's own time, the largest first."""
    names = {name for each in found for name in each}
    medians = {name: statistics.median(each.get(name, 0.0) for each in found) for name in names}
    lines = ["| package | own time |", "|---|--:|"]
    for name, took_s in sorted(medians.items(), key=lambda item: -item[1]):
        if took_s >= 0.001:
            lines.append(f"| {name} | {took_s * 1e3:.0f} ms |")
    return "\n".join(lines)
