"""Names and labels of a job's objects, and label selectors. No I/O.

The label `windlass.dev/job=ID` selects every object of a job. Every name starts with the job's ID,
which is itself a valid object name. Objects of different jobs therefore cannot be confused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from windlass import names
from windlass.kube.objects.fields import Object, labels_of, name_of
from windlass.plan.plan import Plan
from windlass.spec.storage import SecretFiles, Volume
from windlass.spec.work import Calls

_MAX_LABEL = 63
_MAX_VOLUME = 40
_MAX_WORK = 1000
_MANAGER = "windlass"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches these labels. An empty selector matches everything."""
    named = selector.get("matchLabels") or {}
    if any(labels.get(name) != value for name, value in named.items()):
        return False
    return all(_is_met(rule, labels) for rule in selector.get("matchExpressions") or ())


def _is_met(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    name, values = rule["key"], rule.get("values") or ()
    is_there = name in labels
    return {
        "In": is_there and labels.get(name) in values,
        "NotIn": not is_there or labels[name] not in values,
        "Exists": is_there,
        "DoesNotExist": not is_there,
    }.get(rule["operator"], True)  # an unknown operator may match


def headless_name(job_id: str) -> str:
    """Return the name of the headless Service, which gives every pod a DNS name."""
    return f"{job_id}-headless"


def lead_name(job_id: str) -> str:
    """Return the name of the lead's Service, which has an address before any pod runs."""
    return f"{job_id}-lead"


def part_name(job_id: str, number: int) -> str:
    """Return the name of a Secret with pieces of the job's large files, counted from 0."""
    return f"{job_id}-files-{number}"


def make_selector(plan: Plan) -> dict[str, str]:
    """Return the label that all of a job's objects have, and no other object has."""
    return {names.LABEL_JOB: plan.job_id}


def read_job_id(body: Object) -> str:
    """Return the ID of the job that owns an object.

    The label comes first, because not every kind accepts the ID as its name.
    """
    return labels_of(body).get(names.LABEL_JOB, name_of(body))


def make_labels(plan: Plan) -> dict[str, str]:
    """Return the labels of every object of a job."""
    return {
        **make_selector(plan),
        names.LABEL_NAME: label_value(plan.name),
        names.LABEL_APP: label_value(plan.name),
        names.LABEL_MANAGED_BY: _MANAGER,
    }


def make_annotations(plan: Plan, submit: str = "") -> dict[str, str]:
    """Return a job's annotations: facts that are too long for a label.

    The work's arguments are left out, because they may contain secrets.
    """
    annotations = {
        names.ANNOTATION_VERSION: names.VERSION,
        names.ANNOTATION_WORK: plan.work.program[:_MAX_WORK].encode(errors="replace").decode(),
    }
    if isinstance(plan.work, Calls) and plan.work.place_s is not None:
        until_s = plan.created_at_s + plan.work.place_s
        annotations[names.ANNOTATION_KEEP_PLACE] = f"{until_s:.0f}"
    return {**annotations, names.ANNOTATION_SUBMIT: submit} if submit else annotations


def label_value(text: str) -> str:
    """Convert any text to a label value. Each run of invalid characters becomes `-`."""
    clean = re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:_MAX_LABEL]
    return re.sub(r"\A[^A-Za-z0-9]+|[^A-Za-z0-9]+\Z", "", clean)


def object_name(text: str, most: int) -> str:
    """Convert any text to an object name, which is empty if no character is valid."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    clean = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return re.sub(r"\A(?=[0-9])", "job-", clean)[:most].strip("-")


def name_volumes(mounts: Iterable[Volume | SecretFiles], taken: Iterable[str]) -> list[str]:
    """Return a unique name for each mount, made from its path and not in `taken`."""
    used = set(taken)
    volume_names = []
    for mount in mounts:
        stem = re.sub(r"[^a-z0-9]+", "-", mount.path.lower()).strip("-")[:_MAX_VOLUME].strip("-")
        name, count = stem or "volume", 2
        while name in used:
            name, count = f"{stem or 'volume'}-{count}", count + 1
        used.add(name)
        volume_names.append(name)
    return volume_names


def claim_name(prefix: str, volume: str) -> str:
    """Return the name of the claim that Windlass creates for a volume."""
    return f"{prefix}-{volume}"
