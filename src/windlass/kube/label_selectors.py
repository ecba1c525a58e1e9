"""Which objects a label selector of Kubernetes means: matchLabels and matchExpressions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether an object with these labels is meant; an empty selector means all."""
    named = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in named.items()):
        return False
    return all(_holds(rule, labels) for rule in selector.get("matchExpressions") or ())


def _holds(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    name, values = rule["key"], rule.get("values") or ()
    is_there = name in labels
    return {
        "In": is_there and labels.get(name) in values,
        "NotIn": not is_there or labels[name] not in values,
        "Exists": is_there,
        "DoesNotExist": not is_there,
    }.get(rule["operator"], True)  # one that is not known may mean it
