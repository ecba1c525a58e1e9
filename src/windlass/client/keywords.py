"""Keywords of the public functions, with name, type, default and meaning, from the table of settings.

Keywords that are not settings, or accept more than the setting does (an Image as `image`), are defined here.
`make api` writes `client/keyword_types.py` from these tables, for editors and type checkers. `show_keywords`
adds them to `inspect.signature` and `help()`. Values are checked elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from windlass.settings.table import BY_NAME, SETTINGS, Setting

# names that other tools use for the keywords of `.distribute`
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


class Keyword(NamedTuple):  # a dataclass would add a millisecond to every start
    """One keyword: its name, its type as an annotation, its default and its meaning."""

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


JOB = tuple(map(_make_keyword, SETTINGS))  # keywords of run and submit

# keywords of computes and apps that accept more than a setting does, or something else
_OF_NODES = (
    _is("image", "str | Image", "", "image of the pods, with the steps that prepare it"),
    _is("env", "Mapping[str, object]", {}, BY_NAME["env"].help),
    _is("secrets", "Sequence[Secret | str]", (), "secrets for the ranks, as variables or files"),
    _is("volumes", "Sequence[Volume | str]", (), "volumes that every node mounts"),
    _is(
        *("tolerations", "Sequence[str | Mapping[str, str]]", ()),
        "taints to tolerate: KEY, KEY=VALUE, KEY=VALUE:EFFECT, or tables like those of Kubernetes",
    ),
    _is("working_dir", "str", "", "folder to run in, relative to the project's folder"),
    _is("pod_patch", "str | PathLike[str] | Mapping[str, Any] | None", None, BY_NAME["patch"].help),
    _is("root", "str", "", "folder of the project (default: found from the code)"),
)
_USUAL = (
    *_settings("cpus", "memory", "gpus", "gpu_type", "namespace", "node_selector"),
    *_settings("priority_class", "service_account", "queue", "shm", "labels", "annotations"),
)
COMPUTE = (
    _is(
        "name",
        "str",
        "",
        "name of the compute (default: made from the first function or class sent to it)",
    ),
    _is(
        *("engine", "str", ""),
        "engine that provides the nodes (default: a cluster if there is one, or local)",
    ),
    *_USUAL,
    *_OF_NODES,
    _is(
        *("inactivity_ttl", "float | str | None", "1h"),
        "end the nodes after this time without calls, or None to keep them",
    ),
    _is("launch_timeout", "float | str", "15m", "time to wait for the nodes"),
)
# keywords for advanced use
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
# keywords of `fn`, `cls` and `.options`
CALL = (
    _is(
        *("timeout", "float | str | None", None),
        "end a call after this time, in seconds or as text like 5m",
    ),
    _is("stream", "bool", False, "return an iterator over what a generator yields on rank 0"),
    _is(
        *("collect", 'Literal["all", "head"]', "all"),
        "return the values of all ranks, or of rank 0",
    ),
    _is("ranks", "int | Iterable[int] | None", None, "ranks that run the call (default: all)"),
    _is(
        *("keep", 'Literal["", "process"]', ""),
        "keep the ranks and their state with process (default: new ranks for each call)",
    ),
    _is(
        *("reload", 'Literal["auto", "never"]', "auto"),
        "send changed code before a call (auto), or keep the code of the ranks (never)",
    ),
    _is("logs", "bool", True, "show what ranks print"),
)
# keywords of `.distribute` after framework, workers and procs, with the names of other tools
DISTRIBUTE_MORE = (
    _is(
        *("worker_node_options", "Mapping[str, str | float] | None", None),
        "cpus, gpus and memory of each worker, with ray (default: like the head)",
    ),
    *(
        _is(name, _DISTRIBUTE_TYPES[meant], None, f"the same as {meant}")
        for name, meant in ALSO.items()
    ),
)
DISTRIBUTE = (
    _is(
        *("framework", "str", ""),
        "framework that sets up the ranks: pytorch, spmd, ray, monarch or command (default: the setting, "
        "or pytorch)",
    ),
    _is(
        *("workers", "int | str", 1),
        'number of nodes, with ray in addition to the head, or a range such as "2:4"',
    ),
    _is("procs", "int | None", None, "ranks per node (default: one per GPU, or 1)"),
    *DISTRIBUTE_MORE,
)


def show_keywords(*tables: Iterable[Keyword]) -> Callable[[_Function], _Function]:
    """Decorate a function that takes keywords in one mapping, so that `help()` shows each of them."""
    keywords = [keyword for table in tables for keyword in table]

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = dict(signature.parameters)
        mapping, _ = own.popitem()
        # `Unpack` refers to a class that only type checkers import, so it cannot be resolved here.
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
