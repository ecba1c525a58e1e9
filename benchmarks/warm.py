"""Compare warm compute with its peers, in one run, as ratios: edits, empty calls, large arguments.

    python benchmarks/warm.py [--monarch PYTHON] [--ray PYTHON]                     this machine only
    python benchmarks/warm.py --image IMAGE [--monarch-image IMAGE] [--namespace N]    and pods
    python benchmarks/warm.py --quick --only edit-2,empty                           short smoke test

The clock of an edit begins just before the file is written. It stops at the slowest rank's own stamp: the end
of its first all-reduce, or its start. Windlass, Monarch and Ray are already running. torchrun and the
StatefulSet start from nothing each time, as their users do after an edit. A call's time is measured by its
caller.

Every answer is checked: all ranks answer, in order, with the code after the edit. Contestants take turns. A
peer that is not installed is listed with the command that installs it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from warm_case import Line, render_json, render_table
from warm_local import measure_arguments, measure_edit, measure_empty, measure_spread
from warm_setup import Setup, find_python, read_version

from windlass.errors import WindlassError

LOCAL = {
    "edit-2": lambda setup: measure_edit(setup, 2),
    "edit-8": lambda setup: measure_edit(setup, 8),
    "empty": measure_empty,
    "arguments": measure_arguments,
    "spread": measure_spread,
}
PODS = ("pods-edit", "pods-empty", "pods-arguments", "pods-spread")
_BIG, _QUICK_BIG = 1 << 30, 64 << 20


def measure(setup: Setup, only: list[str]) -> list[Line]:
    """Measure the cases in `only`."""
    lines = [line for name in only if name in LOCAL for line in LOCAL[name](setup)]
    wanted = set(only) & set(PODS)
    if wanted and setup.image:
        lines += _measure_cluster(setup, wanted)
    elif wanted:
        note = "no image: pass one with Python and torch with `--image`"
        lines += [Line(case=name, who="windlass", note=note) for name in PODS if name in wanted]
    return lines


def _measure_cluster(setup: Setup, wanted: set[str]) -> list[Line]:
    from warm_cluster import measure_pod_spread, measure_pods, open_grounds

    from windlass.kube.client.api import connect

    lines = []
    with open_grounds(setup, connect(context=setup.context)) as grounds:
        if wanted - {"pods-spread"}:
            lines += measure_pods(setup, grounds, wanted)
        if "pods-spread" in wanted:
            lines += measure_pod_spread(setup, grounds)
    return lines


def describe(pythons: dict[str, str]) -> dict[str, Any]:
    """Describe the machine and the installed versions."""
    packages = {"monarch": "torchmonarch", "ray": "ray"}
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        **{name: read_version(pythons[name], package) for name, package in packages.items()},
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*LOCAL, *PODS]
    parser.add_argument(
        "--only", default=",".join(names), help=f"cases (default: {','.join(names)})"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="measured rounds after a warm-up (default: 5)"
    )
    parser.add_argument(
        "--calls", type=int, default=300, help="empty calls per round (default: 300)"
    )
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds before each edit (default: 1)"
    )
    parser.add_argument("--quick", action="store_true", help="run one short round")
    parser.add_argument(
        "--monarch", default="", help="Python with torchmonarch (default: this one)"
    )
    parser.add_argument("--ray", default="", help="Python with ray (default: this one)")
    parser.add_argument(
        "--image", default="", help="image with Python and torch, present on the nodes"
    )
    parser.add_argument("--monarch-image", default="", help="such an image with torchmonarch")
    parser.add_argument("--namespace", default="windlass-warm", help="an empty or new namespace")
    parser.add_argument("--context", default="", help="context of the kubeconfig")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(names):
        parser.error(f"--only: unknown case {', '.join(sorted(unknown))}")
    if options.rounds < 1 or options.calls < 1 or options.pause < 0:
        parser.error("--rounds and --calls must be at least 1, and --pause at least 0")
    if options.image and shutil.which("kubectl") is None:
        parser.error("kubectl is not on the PATH, but peers in pods need it to start")
    return options


def make_setup(options: argparse.Namespace, folder: Path) -> Setup:
    return Setup(
        folder=folder,
        rounds=1 if options.quick else options.rounds,
        calls=min(options.calls, 50) if options.quick else options.calls,
        big_bytes=_QUICK_BIG if options.quick else _BIG,
        pause_s=options.pause,
        pythons={
            "monarch": find_python(options.monarch, "monarch"),
            "ray": find_python(options.ray, "ray"),
        },
        torchrun=Path(sys.executable).with_name("torchrun"),
        image=options.image,
        monarch_image=options.monarch_image,
        namespace=options.namespace,
        context=options.context,
    )


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="bench-warm-") as folder:
        setup = make_setup(options, Path(folder))
        about = describe(setup.pythons)
        lines = measure(setup, options.only)
    if options.json:
        about |= {"load_1min_after": round(os.getloadavg()[0], 2), "rounds": setup.rounds}
        about["pause_s"] = setup.pause_s
        options.json.write_text(json.dumps({"about": about, "lines": render_json(lines)}, indent=1))
    print(render_table(lines))


if __name__ == "__main__":
    try:
        main()
    except WindlassError as error:  # has a hint of its own
        sys.exit(f"warm: {error}")
