"""Search for a job's lead among the pods that may be its node 0.

A user who may write pods can give a pod any labels and owner, but only node 0 has the job's key.
All candidates are therefore dialed concurrently, and the one that proves by TLS that it has the key
is the lead. A pod that fails the job's TLS is logged once and never dialed again. A pod that does
not answer causes no delay.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from windlass.errors import EngineError
from windlass.kube.objects.fields import Object, container_of, name_of, uid_of

logger = logging.getLogger(__name__)

_HEAD_START_S = 0.3  # head start of the pods that are dialed first
_MAX_DIALS = 16  # concurrent connection attempts
# OpenSSL's codes for "not yet valid" and "expired", reported only for certificates of the job's own CA.
_CLOCK_ERRORS = (9, 10)


class KeysExpired(EngineError):
    """The job's certificates are not valid now, so no client can reach its nodes."""


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


def runs(pod: Object) -> bool:
    """Return whether the pod's container is running and the pod is not being deleted."""
    is_running = bool(container_of(pod).get("state", {}).get("running"))
    return is_running and not pod["metadata"].get("deletionTimestamp")


def is_from_impostor(error: BaseException) -> bool:
    """Return whether the peer answered, but not as a node of the job.

    Broken connections and wrong clocks do not count.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_code not in _CLOCK_ERRORS
    broke = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, broke)


class LeadPods:
    """Candidates for the lead of one job, with this client's earlier connection attempts.

    `distrust` is called with the UID of each impostor.
    """

    def __init__(
        self,
        job_id: str,
        find: Callable[[], Sequence[Object]],
        distrust: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self._job_id = job_id
        self._find = find
        self._distrust = distrust
        self._lock = threading.Lock()
        self._impostors: set[str] = set()  # UIDs
        self._last_lead = ""  # UID of the lead that was reached last
        self._num_failed: collections.Counter[str] = collections.Counter()

    def reach(self, connect: Callable[[str], T]) -> T | None:
        """Return a connection to the lead, or None while there are no candidates.

        Raises the error of the likeliest candidate if none can be reached. `connect` takes a pod's
        name, and returns once the job's TLS is established.
        """
        dials = _Dials(connect, self._note)
        errors: list[Exception] = []
        try:
            while True:
                waiting = [pod for pod in self._sort() if uid_of(pod) not in dials.started]
                is_known = not dials.started and self._last_lead in map(uid_of, waiting[:1])
                for pod in waiting[: 1 if is_known else _MAX_DIALS]:
                    dials.start(pod)
                if not dials.num_pending:
                    break
                finished = dials.wait(_HEAD_START_S)
                if finished is None:
                    continue
                pod, result = finished
                if not isinstance(result, Exception):
                    self._last_lead = uid_of(pod)
                    return result
                if not self._note(pod, result):
                    errors.append(self._explain(result))
        finally:
            dials.close()
        if errors:
            raise errors[0]
        return None

    def _sort(self) -> list[Object]:
        """Return the candidates: the last lead first, then by the fewest failures, then the newest."""
        pods = [pod for pod in self._find() if uid_of(pod) not in self._impostors]
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        pods.sort(key=lambda pod: self._num_failed[uid_of(pod)])
        return sorted(pods, key=lambda pod: uid_of(pod) != self._last_lead)

    def _note(self, pod: Object, error: Exception) -> bool:
        """Count a failure. Return True for an impostor, which is logged once."""
        with self._lock:
            self._num_failed[uid_of(pod)] += 1
            is_impostor, is_known = is_from_impostor(error), uid_of(pod) in self._impostors
            if not is_impostor or is_known:
                return is_impostor
            self._impostors.add(uid_of(pod))
        self._distrust(uid_of(pod))
        logger.warning(
            "pod %s claims to be node 0 of %s but does not have the job's key, so it is not used; "
            "inspect it with `kubectl describe pod %s`",
            *(name_of(pod), self._job_id, name_of(pod)),
        )
        return True

    def _explain(self, error: Exception) -> Exception:
        if not isinstance(error, ssl.SSLCertVerificationError):
            return error
        return KeysExpired(
            f"the certificates of {self._job_id} are not valid now ({error.verify_message})",
            hint="check this machine's clock; if it is right, run "
            f"`windlass cancel {self._job_id}` and submit the job again",
        )


class _Dials(Generic[T]):
    """Connection attempts, one thread each. Late connections are closed. Late failures still count."""

    def __init__(
        self, connect: Callable[[str], T], note: Callable[[Object, Exception], bool]
    ) -> None:
        self._connect = connect
        self._note = note
        self._results: queue.SimpleQueue[tuple[Object, T | Exception]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self.started: set[str] = set()  # UIDs of pods
        self.num_pending = 0

    def start(self, pod: Object) -> None:
        self.started.add(uid_of(pod))
        self.num_pending += 1
        threading.Thread(target=self._dial, args=(pod,), name="windlass-dial", daemon=True).start()

    def _dial(self, pod: Object) -> None:
        result: T | Exception
        try:
            result = self._connect(name_of(pod))
        except Exception as error:  # noqa: BLE001 - raised again by `reach`
            result = error
        with self._lock:
            if not self._is_closed:
                self._results.put((pod, result))
                return
        self._drop(pod, result)

    def wait(self, timeout_s: float) -> tuple[Object, T | Exception] | None:
        """Return a pod and its connection or error, or None if no attempt ends in time."""
        try:
            finished = self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.num_pending -= 1
        return finished

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._drop(*self._results.get_nowait())

    def _drop(self, pod: Object, result: T | Exception) -> None:
        if isinstance(result, Exception):
            self._note(pod, result)
            return
        with contextlib.suppress(OSError):
            result.close()
