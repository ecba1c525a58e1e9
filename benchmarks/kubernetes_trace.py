"""Run `windlass` and record how long its modules and functions take.

    python kubernetes_trace.py run ...     as `windlass run ...`

The spans are written to the file in $BENCH_TRACE. The program times each module while it loads, and the
functions in `TIMED` when they are called. Order and threads are unchanged, and no module is loaded earlier
than usual.
"""

import time

_UP_S = time.time()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable  # noqa: E402
from importlib.machinery import ModuleSpec  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import Any  # noqa: E402

Label = Callable[..., str]


def _request_label(_self: Any, request: Any, *_args: Any) -> str:
    """Return a label such as `POST jobs` without namespaces and names, which differ between runs."""
    steps = request.path.partition("/namespaces/")[2].split("/")[1:]
    kind = "/".join((steps[0], *("..." for _ in steps[1:2]), *steps[2:])) if steps else ""
    is_watch = "watch" in (request.params or {})
    return f"{'WATCH' if is_watch else request.method} {kind or request.path}"


# module -> function -> label of its spans
TIMED: dict[str, dict[str, Label]] = {
    "windlass.cli.prepare": {"prepare_words": lambda *_a, **_k: "prepare"},
    "windlass.client.jobs.packing": {"pack": lambda *_a, **_k: "pack the project"},
    "windlass.engines.archives": {"build_archive": lambda *_a, **_k: "build the agent's archive"},
    "windlass.kube.client.kubeconfig": {"read_target": lambda *_a, **_k: "read the kubeconfig"},
    "windlass.engines.cluster.job_secret": {
        "make_certificates": lambda *_a, **_k: "make certificates"
    },
    "windlass.kube.client.transport": {"Transport._send": _request_label},
    "windlass.engines.cluster.submit": {"create_objects": lambda *_a, **_k: "create objects"},
    "windlass.kube.client.forward": {"open_stream": lambda *_a, **_k: "open a port-forward"},
    "windlass.engines.cluster.lead_sync": {
        "LeadSync._serve": lambda *_a, **_k: "talk with the lead"
    },
    "windlass.client.jobs.live_view": {"follow": lambda *_a, **_k: "follow"},
}


class Recorder:
    """The recorded spans, and the load time of each package."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.import_s: dict[str, float] = {}
        self._open = threading.local()

    def timed(self, function: Callable[..., Any], label: Label) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            span: dict[str, Any] = {"name": label(*args, **kwargs), "ended_s": None}
            span |= {"began_s": time.time(), "cpu_before_s": time.process_time()}
            self.spans.append(span)
            try:
                return function(*args, **kwargs)
            finally:
                span |= {"ended_s": time.time(), "cpu_after_s": time.process_time()}

        return call

    def load(self, name: str, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Run a module and record its own time, without the modules that it loads."""
        inner = getattr(self._open, "inner_s", 0.0)
        self._open.inner_s = 0.0
        began_s = time.perf_counter()
        try:
            execute(module)
        finally:
            took_s = time.perf_counter() - began_s
            root = _group(name)
            self.import_s[root] = self.import_s.get(root, 0.0) + took_s - self._open.inner_s
            self._open.inner_s = inner + took_s
        for path, label in TIMED.get(name, {}).items():
            owner_path, _, last = path.rpartition(".")
            owner = getattr(module, owner_path) if owner_path else module
            setattr(owner, last, self.timed(getattr(owner, last), label))


def _group(name: str) -> str:
    root = name.partition(".")[0]
    return "standard library" if root in sys.stdlib_module_names else root


class Finder:
    """Meta path finder that uses the other finders and records each module's load."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._instrument(name, spec)
                return spec
        return None

    def _instrument(self, name: str, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if loader is None or isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module
        loader.exec_module = lambda module: self._recorder.load(name, execute, module)


def main() -> int:
    recorder = Recorder()
    sys.meta_path.insert(0, Finder(recorder))
    sys.argv[0] = "windlass"
    from windlass.cli.main import main as windlass

    try:
        return windlass()
    finally:
        found = {"up_s": _UP_S, "spans": recorder.spans, "import_s": recorder.import_s}
        with open(os.environ["BENCH_TRACE"], "w") as out:
            json.dump({**found, "cpu_s": time.process_time()}, out)


if __name__ == "__main__":
    sys.exit(main())
