"""The pods that may be a job's node 0: all are tried, and the one that holds the job's key is it.

Labels and owners of a pod are what anybody who may write pods says they are; the key is not. So whoever fails
the job's TLS is named once and left alone from then on, and one that only stays silent is overtaken by the
next: neither delays who wants to reach the lead. Which pods there are, and how one is reached, is told.
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
from windlass.kube.fields import Object, container_of, controller_of, name_of, uid_of

logger = logging.getLogger(__name__)

_STAGGER_S = 0.3  # how long one has before the next is tried beside it
_MOST_AT_ONCE = 16
_CLOCKS = (9, 10)  # OpenSSL's codes for "not yet valid" and "expired", said of our own CA's alone


class KeysExpired(EngineError):
    """The job's certificates are not valid now: nobody can reach its nodes any more."""


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


def is_owned_by(pod: Object, job_uid: str) -> bool:
    """Whether the Job of this uid is what controls it."""
    return bool(job_uid) and controller_of(pod) == job_uid


def runs(pod: Object) -> bool:
    """Whether its container runs, and is to stay."""
    is_running = bool(container_of(pod).get("state", {}).get("running"))
    return is_running and not pod["metadata"].get("deletionTimestamp")


def is_imposture(error: BaseException) -> bool:
    """Whether it spoke, and not as a node of the job: a line that broke, or a clock, is no such thing."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_code not in _CLOCKS
    broke = (ssl.SSLEOFError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, broke)


class LeadPods:
    """Of one job, for one client."""

    def __init__(
        self,
        job_id: str,
        find: Callable[[], Sequence[Object]],
        distrust: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self._job_id = job_id
        self._find = find
        self._distrust = distrust  # is told the uid of each that is not the lead
        self._false: set[str] = set()
        self._num_failed: collections.Counter[str] = collections.Counter()

    def reach(self, connect: Callable[[str], T]) -> T | None:
        """A connection to the lead; None while no pod could be it. Else what kept the likeliest one.

        `connect` takes a pod's name, and returns once the job's TLS stands.
        """
        tries = _Tries(connect)
        errors: list[Exception] = []
        try:
            while True:
                waiting = [pod for pod in self._sort() if uid_of(pod) not in tries.asked]
                if waiting and tries.num_open < _MOST_AT_ONCE:
                    tries.start(waiting[0])
                if not tries.num_open:
                    break
                pod, answer = tries.next(_STAGGER_S)
                if pod is None or answer is None:
                    continue
                if not isinstance(answer, Exception):
                    self._num_failed.pop(uid_of(pod), None)
                    return answer
                if not self._note(pod, answer):
                    errors.append(self._explain(answer))
        finally:
            tries.close()
        if errors:
            raise errors[0]
        return None

    def _sort(self) -> list[Object]:
        """Newest first, and before it those that failed less often."""
        found = [pod for pod in self._find() if uid_of(pod) not in self._false]
        found.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        return sorted(found, key=lambda pod: self._num_failed[uid_of(pod)])

    def _note(self, pod: Object, error: Exception) -> bool:
        """Remember a failure; whether it was an imposture, which is told once."""
        self._num_failed[uid_of(pod)] += 1
        if not is_imposture(error):
            return False
        self._false.add(uid_of(pod))
        self._distrust(uid_of(pod))
        logger.warning(
            "pod %s claims to be node 0 of %s but does not hold the job's key: it is not used; "
            "kubectl describe pod %s shows what it is",
            *(name_of(pod), self._job_id, name_of(pod)),
        )
        return True

    def _explain(self, error: Exception) -> Exception:
        if not isinstance(error, ssl.SSLCertVerificationError):
            return error
        return KeysExpired(
            f"the certificates of {self._job_id} are not valid now ({error.verify_message})",
            hint=f"is this machine's clock right? else end it: windlass cancel {self._job_id}; "
            "then start it anew",
        )


class _Tries(Generic[T]):
    """Connections under way, a thread each; what comes too late is closed."""

    def __init__(self, connect: Callable[[str], T]) -> None:
        self._connect = connect
        self._answers: queue.SimpleQueue[tuple[Object, T | Exception]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_over = False
        self.asked: set[str] = set()
        self.num_open = 0

    def start(self, pod: Object) -> None:
        self.asked.add(uid_of(pod))
        self.num_open += 1
        threading.Thread(target=self._try, args=(pod,), name="windlass-dial", daemon=True).start()

    def _try(self, pod: Object) -> None:
        answer: T | Exception
        try:
            answer = self._connect(name_of(pod))
        except Exception as error:  # noqa: BLE001 - raised again where it was asked for
            answer = error
        with self._lock:
            if not self._is_over:
                self._answers.put((pod, answer))
                return
        _close(answer)

    def next(self, timeout_s: float) -> tuple[Object | None, T | Exception | None]:
        try:
            pod, answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None, None
        self.num_open -= 1
        return pod, answer

    def close(self) -> None:
        with self._lock:
            self._is_over = True
        with contextlib.suppress(queue.Empty):
            while True:
                _close(self._answers.get_nowait()[1])


def _close(answer: Closable | Exception) -> None:
    if not isinstance(answer, Exception):
        with contextlib.suppress(OSError):
            answer.close()
