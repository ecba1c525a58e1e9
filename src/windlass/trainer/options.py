"""Options of `train` with the SDK's names and fields, and their translation. Performs no I/O.

The SDK's own option objects work too, because options are recognized by their class names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass import names
from windlass.near_names import did_you_mean
from windlass.trainer.sdk_errors import WrongArgument


@dataclass
class Name:
    """The job's name.

    name: lowercase letters, digits and -.
    """

    name: str


@dataclass
class Labels:
    """Labels of the job's pods and objects. Kueue's label sets the job's queue.

    labels: the labels.
    """

    labels: dict[str, str]


@dataclass
class Annotations:
    """Annotations of the job's pods.

    annotations: the annotations.
    """

    annotations: dict[str, str]


@dataclass
class TrainerCommand:
    """The program that a CustomTrainerContainer runs on every node.

    command: the program and its arguments, as a list.
    """

    command: list[str]


@dataclass
class TrainerArgs:
    """Arguments after the command of a CustomTrainerContainer.

    args: the arguments, as a list.
    """

    args: list[str]


@dataclass
class ActiveDeadlineSeconds:
    """Time limit of the job.

    seconds: 1 or more.
    """

    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Combined result of all options."""

    name: str = ""
    command: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of wl.submit


_KNOWN = (Name, Labels, Annotations, TrainerCommand, TrainerArgs, ActiveDeadlineSeconds)
_KNOWN_NAMES = tuple(kind.__name__ for kind in _KNOWN)
_INSTEAD = {
    "RuntimePatch": "pass pod settings to the client: TrainerClient(volumes=['CLAIM:/data'], "
    "node_selector={...}, tolerations=[...], service_account=..., patch={'spec': {...}})",
    "TrainerEnvFrom": "TrainerClient(secrets=['VAR=NAME:KEY'])",
}


def read_sdk_options(options: Iterable[Any] | None) -> ReadOptions:
    """Combine options into a name, a command and settings. As in the SDK, the last option of a kind wins."""
    values: dict[str, Any] = {}
    for option in options or ():
        kind = type(option).__name__
        if kind not in _KNOWN_NAMES:
            hint = _INSTEAD.get(kind) or did_you_mean(kind, _KNOWN_NAMES)
            raise WrongArgument(f"{option!r:.80} is not a supported option", hint=hint)
        values[kind] = next(iter(vars(option).values()))
    labels = dict(values.get("Labels") or {})
    settings: dict[str, Any] = {}
    if queue := labels.pop(names.LABEL_QUEUE, ""):
        settings["queue"] = queue
    if labels:
        settings["labels"] = labels
    if annotations := values.get("Annotations"):
        settings["annotations"] = annotations
    if "ActiveDeadlineSeconds" in values:
        settings["timeout_s"] = _check_seconds(values["ActiveDeadlineSeconds"])
    return ReadOptions(
        name=values.get("Name") or "",
        command=(*_read_words(values, "TrainerCommand"), *_read_words(values, "TrainerArgs")),
        settings=settings,
    )


def _read_words(values: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    words = values.get(kind) or ()
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise WrongArgument(
            f"{kind} takes a list of strings, not {words!r:.60}",
            hint=f'use {kind}(["python", "x.py"])',
        )
    return tuple(words)


def _check_seconds(seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 1:
        raise WrongArgument(
            f"ActiveDeadlineSeconds must be a whole number of at least 1, not {seconds!r}"
        )
    return seconds
