"""Recovery of a job's files from the logs of its pods, after its lead has exited.

Before it exits, a lead writes its last status and the results to its log, as a `LastWord`. The
output of ranks is in the logs of all pods.
"""

from __future__ import annotations

import collections
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound
from windlass.kube.objects.fields import Object, container_of, name_of
from windlass.plan.plan import Plan
from windlass.trusted import make_own
from windlass.wire.file_sync import is_from_lead
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.last_word import LastWord, num_lines, read_last_word
from windlass.wire.log_lines import read_pod_log
from windlass.wire.status import JobStatus, read_status, render_status

logger = logging.getLogger(__name__)

# A command answers within ten seconds even if nodes do not, so requests for logs have short timeouts.
_ANNOUNCED_S, _UNANNOUNCED_S = 4.0, 1.0
_ALL_S = 5.0
_FIRST_S = 0.7  # if none of many nodes answers within this time, give up
_FEW = 64
_NUM_THREADS = 16
_MAX_LOG_BYTES = 64 << 20  # nodes keep 10 MB of a pod's log by default
_MAX_LOGS = 10_000  # ranks and attempts in one pod


def read_leftovers(
    api: Api,
    plan: Plan,
    pods: Sequence[Object],
    folder: JobFolder,
    *,
    leads: Sequence[Object],
    container: str = names.CONTAINER,
) -> None:
    """Write node 0's last status and results to `folder`, and record the pods with unread logs.

    `leads` are the pods that were node 0, oldest first. `container` is the name of Windlass's container.
    """
    logger.debug("%s has ended: reading the log of node 0", plan.job_id)
    for pod in reversed(leads):
        if _take_last_word(api, pod, plan, folder, container):
            break
    unread = json.dumps([name_of(pod) for pod in pods])
    write_atomically(folder.path / names.UNREAD_FILE, unread.encode())


def has_unread(folder: JobFolder) -> bool:
    """Return whether the logs of some pods have not been read yet."""
    return (folder.path / names.UNREAD_FILE).exists()


def read_unread(api: Api, folder: JobFolder, *, container: str = names.CONTAINER) -> None:
    """Write the output of ranks to `folder`, from the logs of all pods that were not read yet.

    Takes a few seconds at most, even if no node answers. Logs that cannot be read now are requested
    again the next time, unless their pod was deleted.
    """
    file = folder.path / names.UNREAD_FILE
    pods = [str(pod) for pod in records.parse(file.read_bytes(), file.name)]
    has_few_pods = len(pods) <= _FEW
    unread, why = set(pods), ""
    first_s = _ALL_S if has_few_pods else _FIRST_S
    for pod, answer in _ask_all(api, pods, container, first_s=first_s):
        if isinstance(answer, Forbidden):
            raise answer  # otherwise the job would appear to have no output
        if isinstance(answer, bytes):
            _take_lines(answer, folder)
        else:
            why = answer.message
        if isinstance(answer, (bytes, NotFound)):
            unread.discard(pod)
    if why or unread:
        logger.warning(
            "the logs of %s pods cannot be read (%s); their output is missing here",
            f"{len(unread)} of {len(pods)}" if unread else "some",
            why or "their nodes do not answer",
        )
    if unread:
        write_atomically(file, json.dumps(sorted(unread)).encode())
    else:
        file.unlink()


def _ask_all(
    api: Api, pods: Sequence[str], container: str, *, first_s: float
) -> Iterator[tuple[str, bytes | ClusterError]]:
    """Yield each pod's log or error as it arrives, until a deadline.

    Stops after `first_s` seconds if no log has arrived by then.
    """
    waiting, answers = (
        queue.SimpleQueue[str](),
        queue.SimpleQueue[tuple[str, bytes | ClusterError]](),
    )
    end_s = time.monotonic() + _ALL_S
    for pod in pods:
        waiting.put(pod)

    def ask() -> None:
        while (left_s := end_s - time.monotonic()) > 0:
            try:
                pod = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                log = api.read_log(
                    pod, container=container, timestamps=True, limit_bytes=_MAX_LOG_BYTES,
                    timeout_s=left_s, is_retried=False,
                )  # fmt: skip
                answers.put((pod, log))
            except ClusterError as error:
                answers.put((pod, error))

    for _ in range(min(_NUM_THREADS, len(pods))):
        threading.Thread(target=ask, name="windlass-logs", daemon=True).start()
    give_up_s = time.monotonic() + first_s
    for _ in pods:
        try:
            pod, answer = answers.get(timeout=max(0.0, give_up_s - time.monotonic()))
        except queue.Empty:
            return
        if isinstance(answer, bytes):
            give_up_s = end_s
        yield pod, answer


def _take_last_word(api: Api, pod: Object, plan: Plan, folder: JobFolder, container: str) -> bool:
    # An agent that writes a last word also writes a message. Without one, try only briefly.
    is_announced = bool((container_of(pod).get("state", {}).get("terminated") or {}).get("message"))
    timeout_s = _ANNOUNCED_S if is_announced else _UNANNOUNCED_S
    last_word = _find_last_word(api, name_of(pod), container, timeout_s=timeout_s)
    if last_word is None or (status := _read_status(last_word, plan)) is None:
        return False
    files = {**last_word.files, names.STATUS_FILE: render_status(status)}
    if last_word.omitted:
        write_atomically(folder.path / names.OMITTED_FILE, json.dumps(last_word.omitted).encode())
    # The status goes last, so that every file that a final status refers to exists.
    for path, data in sorted(files.items(), key=lambda file: file[0] == names.STATUS_FILE):
        target = folder.path / path
        if is_from_lead(path) and (path == names.STATUS_FILE or len(data) > _size(target)):
            make_own(target.parent, below=folder.path)
            write_atomically(target, data, is_durable=True)
    return True


def _read_status(word: LastWord, plan: Plan) -> JobStatus | None:
    """Return the status, or None if it is malformed or another job's. Any process in a pod can write one."""
    try:
        status = read_status(word.files[names.STATUS_FILE])
    except (KeyError, ProtocolError) as error:
        logger.warning("the last status in the log of node 0 is ignored: %s", error)
        return None
    return replace(status, work=plan.work.label) if status.job_id == plan.job_id else None


def _find_last_word(api: Api, pod: str, container: str, *, timeout_s: float) -> LastWord | None:
    """Return the `LastWord` at the end of a pod's log. Its last line has its number of lines."""
    try:
        end = api.read_log(
            pod, container=container, tail_lines=50, limit_bytes=_MAX_LOG_BYTES,
            timeout_s=timeout_s, is_retried=False,
        )  # fmt: skip
        wanted = num_lines(end)
        if wanted > 50:
            end = api.read_log(
                pod, container=container, tail_lines=wanted + 50, limit_bytes=_MAX_LOG_BYTES
            )
    except Forbidden:
        raise
    except ClusterError as error:  # another pod's log may still be readable
        logger.info("the log of %s: %s", pod, error)
        return None
    return read_last_word(end)


def _take_lines(log: bytes, folder: JobFolder) -> None:
    records_by_log: dict[tuple[int, int], list[bytes]] = collections.defaultdict(list)
    for rank, attempt, record in read_pod_log(log):
        if len(records_by_log) < _MAX_LOGS or (attempt, rank) in records_by_log:
            records_by_log[attempt, rank].append(record)
    for (attempt, rank), lines in records_by_log.items():
        target = folder.log(attempt, rank)
        # A file that was copied from the node is more accurate, even if it is shorter.
        if not target.exists():
            make_own(target.parent, below=folder.path)
            write_atomically(target, *lines)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
