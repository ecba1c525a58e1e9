"""Requests of calls, made from their arguments, their code, and the ranks that they run on.

Most of a request is the same for every call and is made once. Each call adds its arguments. A request also
contains the source lines of functions that are pickled by value, so that tracebacks of ranks show them. This
module sends nothing.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names, records
from windlass.bundle.functions import read_contents
from windlass.client.compute.calls.callable_work import Work, first_method, fit_called_command
from windlass.client.compute.calls.project_files import (
    PlacedProject,
    Project,
    find_project,
    project_at,
)
from windlass.client.compute.nodes.distribution import Distribution
from windlass.client.jobs.job_ids import make_call_id
from windlass.client.jobs.node_settings import make_sizes
from windlass.client.jobs.packing import check_modules
from windlass.client.jobs.run import current_folder
from windlass.client.jobs.target import (
    blame_argument,
    check_bound,
    import_paths,
    inspect_signature,
    unwrap_partial,
)
from windlass.client.terminal import print_notice
from windlass.errors import BundleError, SpecError, count_noun
from windlass.frameworks.framework import choose_framework
from windlass.spec.node_resources import NodeSizes
from windlass.spec.work import Calls
from windlass.wire import payloads
from windlass.wire.call_targets import ByFile
from windlass.wire.messages.calls import AskCall, CallProfile, ProjectPlace, WorldRequest
from windlass.wire.messages.computes import SyncCode

if TYPE_CHECKING:
    from windlass.client.compute.calls.callable_work import Options
    from windlass.client.compute.nodes.compute_handle import Compute
    from windlass.client.compute.nodes.live_nodes import LiveNodes


_MAX_CHARACTERS = 256 << 10
GUARD = 'put what only a run should do under if __name__ == "__main__":'
_MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"

_warned: set[str] = set()  # warnings already printed


def find_sources(target: Any, *, is_remote: bool) -> dict[str, str]:
    """Return the source of each file or cell with `__main__` code that the target uses, by file name."""
    sources: dict[str, str] = {}
    left = _MAX_CHARACTERS
    for code in _find_code(target):
        name = code.co_filename
        if name in sources or (not is_remote and os.path.exists(name)):
            continue
        text = "".join(linecache.getlines(name))
        left -= len(text)
        if left < 0:
            break
        sources[name] = text
    return sources


def _find_code(target: Any) -> Iterator[types.CodeType]:
    todo, seen = [inspect.unwrap(target) if callable(target) else target], set[int]()
    while todo:
        thing = todo.pop()
        if id(thing) in seen or getattr(thing, "__module__", None) != "__main__":
            continue
        seen.add(id(thing))
        if inspect.isclass(thing):
            todo += [value for base in thing.__mro__ for value in vars(base).values()]
        elif inspect.isfunction(thing):
            yield thing.__code__
            known = thing.__globals__
            todo += [known[name] for name in thing.__code__.co_names if name in known]


def name_by_file(target: Any, root: Path) -> ByFile | None:
    """Return a reference to the target by its script's name.

    Return None if ranks cannot import the script without running it.
    """
    thing = inspect.unwrap(target)
    name = getattr(thing, "__qualname__", "<locals>")
    file = getattr(sys.modules["__main__"], "__file__", None)
    if getattr(thing, "__module__", None) != "__main__" or "<" in name or file is None:
        return None
    path = Path(file).resolve()
    is_module = path.suffix == ".py" and path.stem.isidentifier() and path.is_relative_to(root)
    if not is_module or not _is_guarded(path):
        return None
    # returned objects refer to types by the script's name, which this process then finds in __main__
    sys.modules.setdefault(path.stem, sys.modules["__main__"])
    return ByFile(path.stem, name)


def _is_guarded(path: Path) -> bool:
    """Return whether the script has an `if __name__ == "__main__":` block, which imports do not run."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)


@dataclass(slots=True)
class CallRequest:
    """A call ready to send: its message and payload, and what the lead may need before them."""

    message: AskCall
    segments: Sequence[payloads.Segment]
    profile: CallProfile | None  # part that it shares with other calls, sent once per connection
    make_sync: Callable[[str], tuple[SyncCode, bytes] | None]
    has: str = ""  # digest of the code that the lead was last known to have
    constructor: Sequence[payloads.Segment] | None = None
    must_make: bool = False
    was_made: bool = False  # an earlier call created the object. Creating it again loses its state.

    @property
    def id(self) -> str:
        return self.message.id


class Requests:
    """Factory for the requests of one callable on one compute."""

    def __init__(
        self,
        work: Work,
        compute: Compute,
        nodes: LiveNodes,
        spread: Distribution | None,
        *,
        deployed: Mapping[str, Any] | None = None,
    ) -> None:
        self._nodes = nodes
        self._deployed = deployed  # the result of `describe` in the process that deployed it
        self._spread = spread or Distribution(framework=nodes.wanted.settings.framework)
        self._framework = choose_framework(self._spread.framework, is_command=work.is_command)
        self.gives_list = spread is not None and self._framework.gives_list
        self._command_env: dict[str, str] = {}
        if work.is_command:
            per_node = self._spread.procs or self._node_procs
            work = fit_called_command(work, self._spread.workers, per_node)
            variables = (names.NPROC_PER_NODE, names.PET_NPROC_PER_NODE)
            self._command_env = dict.fromkeys(variables, str(per_node))
        self._work = work
        self._working_dir = str(compute.keywords.get("working_dir") or "")
        self._cwd = current_folder()
        self._project: Project | PlacedProject
        if deployed is not None:
            self._project = PlacedProject(ProjectPlace.read(deployed["place"]))
        else:
            root = find_project(work.source, self._cwd, str(compute.keywords.get("root") or ""))
            self._project = project_at(root, travels=nodes.is_remote)
        procs = 1 if spread is None else spread.procs or self._node_procs
        self.procs = self._framework.count_procs(procs, Calls.kind)
        has_cluster = self._framework.cluster is not None
        self.num_ranks = self.procs if has_cluster else self._spread.workers * self.procs
        self._constructor: list[payloads.Segment] | None = None
        self._is_checked = False
        self._was_made = False
        # (method, options) -> other inputs of the profile, its key, and the profile
        self._profiles: dict[Any, tuple[Any, str, CallProfile]] = {}
        self._bound: set[Any] = set()
        self._bare: dict[str, list[payloads.Segment]] = {}  # calls without arguments, by method
        self._signature = (
            None if work.is_command else inspect_signature(work.target, self._framework.gives)
        )
        self._preload = self._choose_preload()
        if work.early and work.early not in _warned:
            _warned.add(work.early)
            print_notice(
                f"{work.name} runs in separate interpreters, without torch preloaded: {work.early}"
            )

    @property
    def _node_procs(self) -> int:
        """Default number of ranks per node.

        Taken from the nodes as they were made, not from the settings of this process.
        """
        return int((self._deployed or {}).get("procs") or self._nodes.wanted.procs)

    def describe(self) -> dict[str, Any]:
        """Return the code's folder on the nodes, and the settings that other processes need for calls.

        The next call from this process sends the code to that folder.
        """
        self._project.refresh()
        return {
            "procs": self._node_procs,
            "place": records.to_json(self._project.about(self._cwd, self._working_dir)),
            "preload": list(self._preload),
            "early": self._work.early,
            "sizes": records.to_json(self._find_sizes()),
        }

    def make(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options,
        *,
        detach: bool,
    ) -> CallRequest:
        """Make the request of one call. Raises TypeError and SyntaxError before anything is sent."""
        nodes = self._nodes
        if options.reload == "auto" or not self._is_checked:
            self._project.refresh()
        self._check_ranks(options.ranks)
        segments = self._pack(method, args, kwargs)
        key, profile = self._choose_profile(method, options, detach=detach)
        call_id = make_call_id(nodes.ref.job_id if nodes.ref else nodes.name)
        has = nodes.connections.projects.get(self._project.key, "")
        nodes.connections.projects[self._project.key] = profile.project.digest
        was_made, self._was_made = self._was_made, True
        return CallRequest(
            AskCall(id=call_id, profile=key),
            segments,
            profile,
            self._project.make_sync,
            has=has,
            constructor=self._make_constructor() if self._work.is_class else None,
            was_made=was_made,
        )

    def _choose_profile(
        self, method: str, options: Options, *, detach: bool
    ) -> tuple[str, CallProfile]:
        """Return the profile that this call shares with others, and its key. Usually it already exists."""
        project = self._project.about(self._cwd, self._working_dir)
        version, limit_s = self._project.version, self._nodes.launch_timeout_s
        sources = self._find_sources()
        kind, what = (method, options, detach), (project, version, limit_s, sources)
        known = self._profiles.get(kind)
        if known is not None and known[0] == what:
            return known[1:]
        work, preload, framework = self._work, self._preload, self._framework
        num_ranks = self.num_ranks if options.ranks is None else len(set(options.ranks))
        profile = CallProfile(
            name=work.name,
            framework=self._framework.name,
            slot=f"{project.key}/{work.name}" if options.keep else "",
            instance=work.instance if work.is_class else "",
            world=WorldRequest(
                nodes=self._spread.workers,
                min_nodes=self._spread.min_workers or self._spread.workers,
                procs=self.procs,
                ranks=None if options.ranks is None else sorted(set(options.ranks)),
            ),
            store=framework.opens_store(preload, num_ranks),
            preload=list(preload),
            start="spawn" if work.early else "",
            env=self._command_env,
            project=project,
            version=version,
            is_watched=options.reload == "auto",
            method=method,
            collect=options.collect,
            stream=options.stream,
            timeout_s=options.timeout,
            launch_timeout_s=limit_s,
            detach=detach,
            sources=sources,
        )
        if sizes := self._find_sizes():
            profile = profile.replaced(sizes=sizes)
        # equal profiles have equal keys, so the lead stores each only once
        text = json.dumps(records.to_json(profile), sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._profiles[kind] = (what, key, profile)  # one assignment: other threads call too
        return key, profile

    def _find_sizes(self) -> NodeSizes | None:
        """Return the nodes' resources if the framework counts them itself.

        Taken from the nodes as they were made, not from the settings of this process.
        """
        if deployed := (self._deployed or {}).get("sizes"):
            return records.read(NodeSizes, deployed)
        wanted, workers = self._nodes.wanted, self._spread.worker_node_options
        are_alike = wanted.has_pods and "worker_sizes" not in wanted.engine.can
        return make_sizes(self._framework, wanted.settings, workers, are_alike=are_alike)

    def _find_sources(self) -> dict[str, str]:
        """Return source lines that ranks cannot find. Ranks find the source of modules they import."""
        target = inspect.unwrap(_as_defined_now(unwrap_partial(self._work.target)))
        if getattr(target, "__module__", None) != "__main__":
            return {}
        return find_sources(target, is_remote=self._nodes.is_remote)

    def _check_ranks(self, ranks: tuple[int, ...] | None) -> None:
        if ranks and ranks[-1] >= self.num_ranks:
            raise SpecError(
                f"rank {ranks[-1]} does not exist: the compute has {count_noun(self.num_ranks, 'rank')}",
                hint=f"ranks= takes numbers from 0 to {self.num_ranks - 1}",
            )

    def _pack(
        self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[payloads.Segment]:
        work = self._work
        if work.is_class and not method:
            raise SpecError(
                f"{work.name} is a class: call its methods",
                hint=f"use remote.{first_method(work.target)}(...)",
            )
        target = _as_defined_now(work.target)
        if not method and not self._project.is_edited:
            self._check_bound(target, args, kwargs)
        if not args and not kwargs and (bare := self._bare.get(method)) is not None:
            return bare
        value = (args, dict(kwargs)) if method else (self._by_file(target), args, dict(kwargs))
        segments = self._pack_value(value, method, args, kwargs)
        if not self._is_checked:
            self._check(bytes(segments[0]))
            self._is_checked = True
        if not args and not kwargs and (method or self._is_constant(target, bytes(segments[0]))):
            self._bare[method] = segments
        return segments

    def _pack_value(
        self, value: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[payloads.Segment]:
        name = self._work.name
        try:
            return payloads.pack(value, name=name)
        except BundleError:
            if method:
                function: Any = getattr(self._work.target, method, None)
                own = inspect_signature(function)
                blame_argument(
                    own, (None, *args), kwargs, f"{name}.{method}"
                )  # None stands for self
            else:
                blame_argument(self._signature, args, kwargs, name)
            raise

    @staticmethod
    def _is_constant(target: Any, payload: bytes) -> bool:
        """Return whether the payload is only the target's name. Partials and bound methods contain values."""
        return inspect.isfunction(target) and not read_contents(payload).by_value

    def _check_bound(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse arguments that the function does not take.

        Checks the number of positional arguments and the names of keywords only.
        """
        form = (id(target), len(args), *kwargs)
        if self._signature is None or form in self._bound:
            return
        is_same = target is self._work.target
        own = self._signature if is_same else inspect_signature(target, self._framework.gives)
        signature = own or self._signature
        check_bound(signature, args, kwargs, self._work.name)
        if is_same:
            self._bound.add(form)

    def _make_constructor(self) -> list[payloads.Segment]:
        if self._constructor is None:
            args, kwargs = self._work.init
            target = self._by_file(self._work.target)
            made = self._pack_value((target, args, kwargs), "", args, kwargs)
            num_bytes = sum(map(len, made))
            if num_bytes > names.MAX_BODY_BYTES:
                raise SpecError(
                    f"init_args of {num_bytes >> 20} MiB are too large ({names.MAX_BODY_BYTES >> 20} MiB)",
                    hint="pass large values to a method, or pass a path that ranks can read",
                )
            self._check(bytes(made[0]))
            self._constructor = made
        return self._constructor

    def _by_file(self, target: Any) -> Any:
        """Return the target, or a reference to it by script name if the nodes run another Python version."""
        if self._nodes.connections.python in ("", _MINOR):
            return target
        return name_by_file(target, self._project.root) or target

    def _check(self, payload: bytes) -> None:
        """Raise SpecError if the nodes could not load the payload."""
        here = _MINOR
        if not self._nodes.is_remote and self._nodes.connections.python in ("", here):
            return
        contents = read_contents(payload)
        if contents.by_value and self._nodes.connections.python != here:
            raise SpecError(
                f"{self._work.name} is pickled by value in Python {here}, but the nodes run "
                f"{self._nodes.connections.python}, which cannot run its code",
                hint=f"put it in a module of the project, or use an image with Python {here}; in a "
                f"script, {GUARD}",
            )
        if not self._nodes.is_remote:
            return
        check_modules(contents.modules, self._project.root, import_paths())

    def _choose_preload(self) -> tuple[str, ...]:
        if not self._framework.preload or self._work.early:
            return ()
        deployed = (self._deployed or {}).get("preload")
        return tuple(deployed) if deployed else self._framework.preload


def _as_defined_now(target: Any) -> Any:
    """Return the latest definition of a notebook function, and anything else unchanged."""
    main = sys.modules["__main__"]
    if not _is_of_main(target) or hasattr(main, "__file__"):
        return target
    defined = vars(main).get(target.__name__)
    return defined if _is_of_main(defined) else target


def _is_of_main(thing: Any) -> bool:
    return inspect.isfunction(thing) and (thing.__module__, thing.__qualname__) == (
        "__main__",
        thing.__name__,
    )
