"""What a job left in its pods' logs, put back into a folder: for when its agents are gone.

Status and results are node 0's last word; lines of ranks are in each pod's own log, as far as the node
still keeps it. What is here already is not made worse.
"""

from __future__ import annotations

import collections
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass import names
from windlass.kube.api import Api
from windlass.kube.fields import index_of, name_of
from windlass.kube.refusals import ClusterError, Forbidden
from windlass.plan.plan import Plan
from windlass.wire.copying import is_from_lead
from windlass.wire.folder import JobFolder, write_atomically
from windlass.wire.lastword import LastWord, num_lines, read_last_word
from windlass.wire.podlog import read_pod_log

logger = logging.getLogger(__name__)


def read_leftovers(api: Api, plan: Plan, pods: Sequence[dict[str, Any]], folder: JobFolder) -> None:
    """Fill `folder` with what pods that have ended still tell."""
    leads = sorted(
        (pod for pod in pods if index_of(pod) == 0),
        key=lambda pod: str(pod["metadata"].get("creationTimestamp")),
    )
    logger.debug("%s has ended: reading the logs of its %s pods", plan.job_id, len(pods))
    for pod in reversed(leads):
        if _take_last_word(api, name_of(pod), folder):
            break
    for pod in pods:
        _take_lines(api, name_of(pod), folder)


def _read_log(api: Api, pod: str, **what: Any) -> bytes:
    """A pod's log; nothing when it is gone, which says nothing about the others."""
    try:
        return api.read_log(pod, container=names.CONTAINER, **what)
    except Forbidden:
        raise  # to say that the job left nothing would be wrong
    except ClusterError as error:
        logger.warning("the log of %s: %s", pod, error)
        return b""


def _take_last_word(api: Api, pod: str, folder: JobFolder) -> bool:
    found = _find_last_word(api, pod)
    if found is None:
        return False
    if found.omitted:
        write_atomically(folder.path / names.OMITTED_FILE, json.dumps(found.omitted).encode())
    # the status last: who has seen a final one has everything it speaks of
    for path, data in sorted(found.files.items(), key=lambda file: file[0] == names.STATUS_FILE):
        target = folder.path / path
        if is_from_lead(path) and (path == names.STATUS_FILE or len(data) > _size(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, data)
    return True


def _find_last_word(api: Api, pod: str) -> LastWord | None:
    """It is the end of the log, and says itself how many lines it has."""
    end = _read_log(api, pod, tail_lines=50)
    wanted = num_lines(end)
    if wanted > 50:
        end = _read_log(api, pod, tail_lines=wanted + 50)
    return read_last_word(end)


def _take_lines(api: Api, pod: str, folder: JobFolder) -> None:
    log = _read_log(api, pod, timestamps=True)
    found: dict[tuple[int, int], list[bytes]] = collections.defaultdict(list)
    for rank, attempt, record in read_pod_log(log):
        found[attempt, rank].append(record)
    for (attempt, rank), lines in found.items():
        target = folder.log(attempt, rank)
        if (
            not target.exists()
        ):  # one that was copied from the node is more exact, if perhaps shorter
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, *lines)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
