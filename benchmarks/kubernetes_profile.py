"""Profile of a Windlass start on a cluster: the moments of client, cluster, pods and ranks.

The tables show medians of several runs in chronological order. A moment of the cluster is the time at which
a watch of this process received it. Moments of pods and ranks are their own stamps. The table of the floor
shows which moments every contestant has.
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
    run_args,
    run_windlass,
)

from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.engine_table import load_dialect
from windlass.kube.client.api import Api
from windlass.kube.objects.fields import container_of
from windlass.kube.objects.kinds import EVENTS, PODS, ObjectKind

# name -> seconds since the exec of the command, or seconds of the client's CPU time
Moments = dict[str, float]

_RANK_WORDS = {
    "container": "its first process starts",
    "parent": "fork server starts",
    "process": "rank is forked",
    "script": "script begins",
    "imported": "script has imported torch",
    "group": "process group is ready",
    "reduced": "first all-reduce",
}


def profile(setup: Setup, runs: int, *, engine: str) -> tuple[str, dict[str, Any]]:
    """Run a warm-up, then Windlass and the floor in turn. Return the tables and the raw data."""
    floor = make_contestants(setup)["floor"]
    if floor is None:
        raise AssertionError("an Indexed Job works on every cluster")
    ours: list[Moments] = []
    client_cpu: list[Moments] = []
    peers: list[Moments] = []
    imports: list[Mapping[str, float]] = []
    for number in range(runs + 1):
        moments, cpu, trace = trace_ours(setup, load_dialect(engine))
        floor_moments = trace_floor(setup, floor)
        if number:
            ours.append(moments)
            client_cpu.append(cpu)
            peers.append(floor_moments)
            imports.append({**trace["import_s"], "(the whole client, cpu)": trace["cpu_s"]})
        both = (moments, floor_moments)
        pair = [max(at_s for name, at_s in m.items() if "rank" in name) for m in both]
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
    """Return the moments of one traced run, the client's CPU time at each, and the client's trace."""
    trace_file = setup.home / "trace.json"
    program = [sys.executable, str(HERE / "kubernetes_trace.py")]
    args = run_args(setup, FIRST, engine=dialect.name)
    with watched(setup.place.api, dialect) as seen:
        began_s, stamps, job = run_windlass(
            setup, [*program, *args], engine=dialect.name, env={"BENCH_TRACE": str(trace_file)}
        )
    trace: dict[str, Any] = json.loads(trace_file.read_text())
    status = json.loads((setup.home / dialect.name / job / "status.json").read_text())
    remove_windlass(setup, job, engine=dialect.name)
    make_sample("windlass", began_s, stamps, num=setup.num_ranks)
    moments = {
        "client: Python is up": trace["up_s"],
        **_span_moments(trace["spans"], "began_s", "ended_s"),
        **seen,
        **{f"lead: {m['name']}": m["at_s"] for m in _lead_moments(status["timeline"])},
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


def _lead_moments(timeline: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the moments by the lead's clock, without the API server's, which have whole seconds."""
    named = ("agent up", "nodes joined", "imports done", "ranks running")
    return [moment for moment in timeline if moment["name"] in named]


def _span_moments(spans: Iterable[Mapping[str, Any]], before: str, after: str) -> Moments:
    """Return the beginning and the end of each span. Repeated names are numbered."""
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
    """Yield the arrival times of pod changes, which are filled in while the block runs."""
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
    is_new = False  # objects before SYNCED belong to an earlier run
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
    jobs = (
        "-".join(parts[:end]) for end in range(1, len(parts))
    )  # the event does not name the job
    index = next((i for job in jobs if (i := dialect.index_in_name(name, job)) is not None), None)
    if index is not None and event.get("reason") in ("Pulled", "Created", "Started"):
        yield f"pod {index}: event {event['reason']}"


# -- showing -------------------------------------------------------------------------------------


def render_moments(found: list[Moments], cpu: list[Moments] | None = None) -> str:
    """Render each moment's median in order. Moments that some runs do not have are omitted."""
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
    """Render each package's own time, largest first."""
    names = {name for each in found for name in each}
    medians = {name: statistics.median(each.get(name, 0.0) for each in found) for name in names}
    lines = ["| package | own time |", "|---|--:|"]
    for name, took_s in sorted(medians.items(), key=lambda item: -item[1]):
        if took_s >= 0.001:
            lines.append(f"| {name} | {took_s * 1e3:.0f} ms |")
    return "\n".join(lines)
