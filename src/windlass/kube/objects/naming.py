"""Names and labels of a job's objects, and label selectors. Pure.

Every object is found by `windlass.dev/job=ID`, and every name starts with the id, which is a valid
name already: nothing of one job can be taken for another's.
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


def headless_name(job_id: str) -> str:
    """The Service that gives every pod a name."""
    return f"{job_id}-headless"


def lead_name(job_id: str) -> str:
    """The Service that has an address before any pod runs."""
    return f"{job_id}-lead"


def part_name(job_id: str, number: int) -> str:
    """One of the Secrets with pieces of the job's large files, counted from 0."""
    return f"{job_id}-files-{number}"


def make_selector(plan: Plan) -> dict[str, str]:
    """The label that all of a job's objects have, and nothing else."""
    return {names.LABEL_JOB: plan.job_id}


def read_job_id(body: Object) -> str:
    """The id of the job that an object belongs to, which not every kind takes for a name."""
    return labels_of(body).get(names.LABEL_JOB, name_of(body))


def make_labels(plan: Plan) -> dict[str, str]:
    """Labels of every object of a job."""
    return {
        **make_selector(plan),
        names.LABEL_NAME: label_value(plan.name),
        names.LABEL_APP: label_value(plan.name),
        names.LABEL_MANAGED_BY: _MANAGER,
    }


def make_annotations(plan: Plan, submit: str = "") -> dict[str, str]:
    """What is worth knowing of a job and too long for a label; arguments may be secrets, and stay out."""
    annotations = {
        names.ANNOTATION_VERSION: names.VERSION,
        names.ANNOTATION_WORK: plan.work.program[:_MAX_WORK].encode(errors="replace").decode(),
    }
    if isinstance(plan.work, Calls) and plan.work.place_s is not None:
        until_s = plan.created_at_s + plan.work.place_s
        annotations[names.ANNOTATION_KEEP_PLACE] = f"{until_s:.0f}"
    return {**annotations, names.ANNOTATION_SUBMIT: submit} if submit else annotations


def label_value(text: str) -> str:
    """Any text as a label's value: what is not allowed becomes -."""
    clean = re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:_MAX_LABEL]
    return re.sub(r"\A[^A-Za-z0-9]+|[^A-Za-z0-9]+\Z", "", clean)


def object_name(text: str, most: int) -> str:
    """Any text as the name of an object; empty where nothing of it can stay."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    clean = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return re.sub(r"\A(?=[0-9])", "job-", clean)[:most].strip("-")


def name_volumes(mounts: Iterable[Volume | SecretFiles], taken: Iterable[str]) -> list[str]:
    """A name for each, after the path it is mounted at, different from all others and `taken`."""
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
    """The claim that is made for a volume of that name."""
    return f"{prefix}-{volume}"
