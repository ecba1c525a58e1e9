"""The keywords of the public functions: name, type, default and meaning of each, from the table of settings.

What is not a setting, or takes more than the setting does (an Image as `image`), is written here. `make api`
writes `client/keyword_types.py` from these tables, for editors and type checkers; `show_keywords` puts them
into what `inspect.signature` and `help()` show. Values are checked elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from windlass.settings.table import BY_NAME, SETTINGS, Setting

# what other tools call the keywords of `.distribute`
ALSO = {
    **dict.fromkeys(("num_workers", "replicas", "nodes"), "workers"),
    **dict.fromkeys(("num_proc", "procs_per_worker", "nproc_per_node"), "procs"),
}
_DISTRIBUTE_TYPES = {"workers": "int | str", "procs": "int | None"}
_Function = TypeVar("_Function", bound=Callable[..., Any])
_TYPES = {
    "str": "str",
    "path": "str | PathLike[str]",
    "int": "int",
    "duration": "float | str",
    "list": "Sequence[str]",
    "many": "Sequence[str]",
    "table": "Mapping[str, str | int]",
    "bool": "bool",
    "quantity": "str | float",
    "nodes": "int | str | NodeRange",
    "patch": "str | PathLike[str] | Mapping[str, Any]",
}


class Keyword(NamedTuple):  # a dataclass would take a millisecond of every start
    """One keyword: its type as an annotation, what it is if left out, and what it means."""

    name: str
    type: str
    default: object
    help: str


def _make_keyword(setting: Setting) -> Keyword:
    kind = _TYPES[setting.kind]
    if setting.choices:
        kind = f"Literal[{', '.join(map(repr, setting.choices))}]".replace("'", '"')
    if setting.optional and setting.kind == "int":
        kind += ' | Literal["none"]'
    if setting.may_be_none or callable(setting.default):
        kind += " | None"
    default = None if callable(setting.default) else setting.default
    text = setting.description if setting.unset else setting.help  # signatures show other defaults
    return Keyword(setting.name, kind, default, text)


def _settings(*names: str) -> tuple[Keyword, ...]:
    return tuple(_make_keyword(BY_NAME[name]) for name in names)


def _is(name: str, kind: str, default: object, text: str) -> Keyword:
    return Keyword(name, kind, default, text)


JOB = tuple(map(_make_keyword, SETTINGS))  # of run and submit

# where a compute or an app takes more than a setting does, or something else
_OF_NODES = (
    _is("image", "str | Image", "", "the pods' image, and the steps that prepare it"),
    _is("env", "Mapping[str, object]", {}, BY_NAME["env"].help),
    _is("secrets", "Sequence[Secret | str]", (), "secrets for the ranks, as variables or files"),
    _is("volumes", "Sequence[Volume | str]", (), "volumes that every node mounts"),
    _is(
        *("tolerations", "Sequence[str | Mapping[str, str]]", ()),
        "taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT, or tables as Kubernetes has them",
    ),
    _is("working_dir", "str", "", "the folder to run in, seen from the project's folder"),
    _is("pod_patch", "str | PathLike[str] | Mapping[str, Any] | None", None, BY_NAME["patch"].help),
    _is("root", "str", "", "the project's folder; empty: found from the code's"),
)
_USUAL = (
    *_settings("cpus", "memory", "gpus", "gpu_type", "namespace", "node_selector"),
    *_settings("priority_class", "service_account", "queue", "shm", "labels", "annotations"),
)
COMPUTE = (
    _is("name", "str", "", "the compute's name; empty: made from what is sent to it first"),
    _is(
        "engine", "str", "", "what provides the nodes; empty: a cluster if there is one, else local"
    ),
    *_USUAL,
    *_OF_NODES,
    _is(
        *("inactivity_ttl", "float | str | None", "1h"),
        "end the nodes when nothing was called for this long; None: never",
    ),
    _is("launch_timeout", "float | str", "15m", "how long to wait for the nodes"),
)
# for those who know the settings
COMPUTE_MORE = (
    *_settings("context", "requests", "ephemeral_storage", "gpu_label", "gpu_resource", "spread"),
    *_settings("pack", "pull_secrets", "run_as", "python", "preload", "grace_s", "peer_wait_s"),
    *_settings("start", "procs", "pretend_gpus", "mesh_name", "open_mesh"),
)
# decided by the app, never by the user
_DECIDED = frozenset(
    ("nodes", "procs", "engine", "framework", "start", "preload", "rdzv_backend", "in_image")
)
APP = (
    *_OF_NODES,
    _is("launch_timeout", "float | str | None", None, BY_NAME["join_timeout_s"].help),
    *(one for one in JOB if one.name not in {*_DECIDED, *(own.name for own in _OF_NODES)}),
)
# of `fn`, `cls` and `.options`
CALL = (
    _is(
        "timeout", "float | str | None", None, "end a call after so long: seconds, or text like 5m"
    ),
    _is("stream", "bool", False, "a call returns an iterator of what a generator yields on rank 0"),
    _is(
        "collect", 'Literal["all", "head"]', "all", "whose values return: every rank's, or rank 0's"
    ),
    _is("ranks", "int | Iterable[int] | None", None, "the ranks that run the call; None: all"),
    _is(
        *("keep", 'Literal["", "process"]', ""),
        "process: ranks stay, with what they hold; empty: fresh ones for each call",
    ),
    _is(
        *("reload", 'Literal["auto", "never"]', "auto"),
        "auto: changed code is sent before a call; never: ranks keep the code they have",
    ),
    _is("logs", "bool", True, "show what ranks print"),
)
# of `.distribute`, after framework, workers and procs: the same in the words of other tools
DISTRIBUTE_MORE = (
    _is(
        *("worker_node_options", "Mapping[str, str | float] | None", None),
        "with ray, what each worker has: cpus, gpus, memory; None: what the head has",
    ),
    *(
        _is(name, _DISTRIBUTE_TYPES[meant], None, f"the same as {meant}")
        for name, meant in ALSO.items()
    ),
)
DISTRIBUTE = (
    _is(
        *("framework", "str", ""),
        "how ranks are set up: pytorch, spmd, ray, monarch or command; empty: the setting, else pytorch",
    ),
    _is(
        *("workers", "int | str", 1),
        'how many nodes, with ray beside the head; "2:4": at least 2, at most 4',
    ),
    _is("procs", "int | None", None, "ranks per node; None: one per GPU, else one"),
    *DISTRIBUTE_MORE,
)


def show_keywords(*tables: Iterable[Keyword]) -> Callable[[_Function], _Function]:
    """Decorate a function that takes keywords in one mapping: `help()` shows each, and what it means."""
    keywords = [keyword for table in tables for keyword in table]

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = dict(signature.parameters)
        mapping, _ = own.popitem()
        # `Unpack` of a class that only checkers import: nothing that a running program can look up
        function.__annotations__[mapping] = Any
        more = [keyword for keyword in keywords if keyword.name not in own]
        shown: Any = function
        shown.__signature__ = signature.replace(
            parameters=[*own.values(), *map(_make_parameter, more)]
        )
        if function.__doc__:
            lines = [f"{keyword.name}: {keyword.help}" for keyword in more]
            shown.__doc__ = "\n".join([inspect.cleandoc(function.__doc__), *lines])
        return function

    return decorate


def _make_parameter(keyword: Keyword) -> inspect.Parameter:
    return inspect.Parameter(
        keyword.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=keyword.default,
        annotation=keyword.type,
    )
