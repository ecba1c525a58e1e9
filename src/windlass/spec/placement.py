"""Where pods may run: tolerations, node labels, and how a job's pods spread. Pure.

Small forms for what is asked every day; anything else is `--patch`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from windlass.errors import SpecError

SPREADS = ("soft", "hard", "none")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}"
_VALUE = rf"({_NAME})?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods do not mind. No value: any; no effect: all; no key: every taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


def read_toleration(text: str) -> Toleration:
    """`KEY`, `KEY=VALUE`, either with `:EFFECT` behind it, or `*` for every taint."""
    name, _, effect = text.partition(":")
    key, _, value = name.partition("=")
    if key == "*" and not value and (not effect or effect in EFFECTS):
        return Toleration(effect=effect)
    if (
        not re.fullmatch(_KEY, key)
        or not re.fullmatch(_VALUE, value)
        or (effect and effect not in EFFECTS)
    ):
        raise SpecError(
            f"--toleration {text!r} is not a taint",
            hint=f"write KEY, KEY=VALUE or KEY=VALUE:EFFECT; effects are {', '.join(EFFECTS)}",
        )
    return Toleration(key=key, value=value, effect=effect)


def check_label_key(flag: str, key: str) -> None:
    """Refuse what is no key of a label or annotation."""
    if not re.fullmatch(_KEY, key):
        raise SpecError(
            f"{flag}: {key!r:.80} is not a key",
            hint="a key is letters, digits, - _ and ., at most 63, perhaps with a domain and / before it",
        )


def check_labels(flag: str, labels: Mapping[str, str], *, choices: bool = False) -> None:
    """Refuse what is no label; with `choices` a value may be several, as in `A|B`."""
    for key, value in labels.items():
        check_label_key(flag, key)
        for part in value.split("|") if choices else (value,):
            if not re.fullmatch(_VALUE, part):
                raise SpecError(
                    f"{flag}: {value!r:.80} is not a label's value",
                    hint="a value is letters, digits, - _ and ., at most 63, and ends with a letter or digit",
                )
