"""The pods that may be a job's node 0: all are tried, and the one that holds the job's key is it.

Labels and owners of a pod are what anybody who may write pods says they are; the key is not. So whoever fails
the job's TLS is named once and left alone from then on, and one that only stays silent is not waited for:
neither delays a client that wants to reach the lead. Which pods there are, and how one is reached, is told.
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

_LOOK_S = 0.3  # how long those that are tried have before others are tried beside them
_AT_ONCE = 16
_CLOCKS = (9, 10)  # OpenSSL's codes for "not yet valid" and "expired", said of our own CA's alone


class KeysExpired(EngineError):
    """The job's certificates are not valid now: nobody can reach its nodes any more."""


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


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
        self._lock = threading.Lock()
        self._false: set[str] = set()
        self._proven = ""  # the one that was reached last
        self._num_failed: collections.Counter[str] = collections.Counter()

    def reach(self, connect: Callable[[str], T]) -> T | None:
        """A connection to the lead; None while no pod could be it. Else what kept the likeliest one.

        `connect` takes a pod's name, and returns once the job's TLS stands.
        """
        tries = _Tries(connect, self._note)
        errors: list[Exception] = []
        try:
            while True:
                waiting = [pod for pod in self._sort() if uid_of(pod) not in tries.asked]
                is_known = not tries.asked and self._proven in map(uid_of, waiting[:1])
                for pod in waiting[: 1 if is_known else _AT_ONCE]:
                    tries.start(pod)
                if not tries.num_open:
                    break
                told = tries.next(_LOOK_S)
                if told is None:
                    continue
                pod, answer = told
                if not isinstance(answer, Exception):
                    self._proven = uid_of(pod)
                    return answer
                if not self._note(pod, answer):
                    errors.append(self._explain(answer))
        finally:
            tries.close()
        if errors:
            raise errors[0]
        return None

    def _sort(self) -> list[Object]:
        """The one that was reached last, then those that failed less often, then the newest."""
        pods = [pod for pod in self._find() if uid_of(pod) not in self._false]
        pods.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True)
        pods.sort(key=lambda pod: self._num_failed[uid_of(pod)])
        return sorted(pods, key=lambda pod: uid_of(pod) != self._proven)

    def _note(self, pod: Object, error: Exception) -> bool:
        """Remember a failure; whether it was an imposture, which is told once."""
        with self._lock:
            self._num_failed[uid_of(pod)] += 1
            is_false, is_told = is_imposture(error), uid_of(pod) in self._false
            if not is_false or is_told:
                return is_false
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
    """Connections under way, a thread each; what comes too late is closed, and what failed late noted."""

    def __init__(
        self, connect: Callable[[str], T], note: Callable[[Object, Exception], bool]
    ) -> None:
        self._connect = connect
        self._note = note
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
        self._drop(pod, answer)

    def next(self, timeout_s: float) -> tuple[Object, T | Exception] | None:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self.num_open -= 1
        return answer

    def close(self) -> None:
        with self._lock:
            self._is_over = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._drop(*self._answers.get_nowait())

    def _drop(self, pod: Object, answer: T | Exception) -> None:
        if isinstance(answer, Exception):
            self._note(pod, answer)
            return
        with contextlib.suppress(OSError):
            answer.close()
