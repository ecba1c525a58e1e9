"""Public names of Windlass: those of `windlass.__all__`, the classes they return, and `windlass.distributed`.

`write_reference` uses this module, and so does the test that every parameter is explained.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import windlass
import windlass.distributed
import windlass.trainer
from windlass.client.compute.calls.remote import Remote
from windlass.client.compute.deploy.app import App
from windlass.client.compute.deploy.decorators import Decorated

FUNCTIONS = ("run", "submit", "attach", "jobs", "report", "fn", "cls", "compute", "distribute")
FUNCTIONS += ("get", "app")
CLASSES: dict[str, type] = {
    "Job": windlass.Job,
    "Compute": windlass.Compute,
    "Remote": Remote,
    "Decorated": Decorated,
    "App": App,
    "Image": windlass.Image,
    "images": type(windlass.images),
    "Secret": windlass.Secret,
    "Volume": windlass.Volume,
    "TrainerClient": windlass.trainer.TrainerClient,
    "TrainerJob": windlass.trainer.TrainerJob,
    "CustomTrainer": windlass.trainer.CustomTrainer,
    "CustomTrainerContainer": windlass.trainer.CustomTrainerContainer,
    "TrainJob": windlass.trainer.TrainJob,
}
IN_TRAINER = ("TrainerClient", "CustomTrainer", "CustomTrainerContainer")  # of windlass.trainer
ERRORS = [
    name
    for name in windlass.__all__
    if isinstance(getattr(windlass, name), type)
    and issubclass(getattr(windlass, name), windlass.WindlassError)
]
# Not for users. Other packages of Windlass use these members.
INTERNAL = {
    *("Job.reader", "Compute.nodes", "Compute.at", "Remote.rebuild", "Decorated.marked"),
    *("Image.read", "Image.plain_steps", "Secret.read", "Secret.resolve", "Secret.record"),
    *("Volume.as_claim", "Volume.variable", "Volume.check_nodes", "Volume.make_claim_manifest"),
    *("Volume.ensure", "Volume.local_folder", "TrainJob.bind"),
}
# Users do not call these classes themselves.
MADE_BY_OTHERS = ("Job", "Remote", "Decorated", "App", "images", "TrainerJob", "TrainJob")
IN_RANKS = ("pod_ips", "volume_path")
_EXPLAINED = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)


def find_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function and method with the name that users write."""
    for name in FUNCTIONS:
        yield name, getattr(windlass, name)
    for name in IN_RANKS:
        yield f"distributed.{name}", getattr(windlass.distributed, name)
    for owner, kind in CLASSES.items():
        if owner not in MADE_BY_OTHERS:
            yield owner, kind
        for name, member in find_members(owner):
            if callable(member):
                yield f"{owner}.{name}", member


def find_members(owner: str) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, in source order."""
    kind = CLASSES[owner]
    for name, member in vars(kind).items():
        if f"{owner}.{name}" in INTERNAL:
            continue
        if isinstance(member, property) and not name.startswith("_"):
            yield name, member
        elif not name.startswith("_") and isinstance(member, (classmethod, staticmethod)):
            yield name, getattr(kind, name)
        elif inspect.isfunction(member) and (not name.startswith("_") or name == "__call__"):
            yield name, member


def read_doc(thing: Any) -> str:
    """Return the docstring of an object. For a class, append that of its constructor."""
    doc = inspect.getdoc(thing) or ""
    if isinstance(thing, type) and (own := vars(thing).get("__init__")) and own.__doc__:
        doc += "\n\n" + (inspect.getdoc(own) or "")
    return doc


def find_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the named parameters of a function, without `self`, `*args` and `**kwargs`."""
    loose = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [
        parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self" and parameter.kind not in loose
    ]


def find_explained(doc: str) -> set[str]:
    """Return the parameters that a docstring explains, each in a line `name: meaning`."""
    return {name for names in _EXPLAINED.findall(doc) for name in names.split(", ")}
