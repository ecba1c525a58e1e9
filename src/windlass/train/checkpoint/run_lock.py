"""Lock of a run, so that only one training process at a time writes to it.

Rank 0 holds the lock while it trains, and only rank 0 removes files. In a folder, the lock is an flock on a
file there. The system releases it when the trainer and its writer process have ended. Object stores have no
locks, so rank 0 keeps renewing a lease there.

In both cases a small file names the owner, and `commit` checks it. A training that was presumed dead
therefore cannot publish a checkpoint any more. Called by checkpoints.py and checkpoint_commit.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint.checkpoint_storage import Storage
from windlass.train.preemption import Preemption
from windlass.waiting import wait_until

logger = logging.getLogger(__name__)

OWNER = ".owner.json"
LOCK = ".lock"
STALE = "no longer belongs to this training"
_HERE_S = 10.0  # how long to wait for a training run on this machine that is about to end
_ELSEWHERE_S = 120.0  # a network file system keeps a lost machine's lock until its lease expires
_LEASE_S = 120.0
_RENEW_S = 20.0
_LONG_AGO_S = 3600.0  # more than the clocks of two machines may differ
_SIGTERM_EXIT_CODE = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Training process that writes to a run."""

    token: str
    job: str  # empty outside of jobs
    attempt: int
    host: str
    pid: int
    pid_space: str  # id of the process namespace, which containers do not share
    time_s: float  # when this was written (a lease is rewritten regularly)
    lease_s: float | None  # None in a folder, which has a lock

    def __str__(self) -> str:
        job = f"attempt {self.attempt} of job {self.job}, " if self.job else ""
        return f"{job}process {self.pid} on {self.host}"

    @property
    def is_dead(self) -> bool:
        """True if the owner ran in this process's PID namespace and no longer exists."""
        if (self.host, self.pid_space) != (socket.gethostname(), _find_pid_space()):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):
            return False
        return False


def read_owner(storage: Storage) -> Owner | None:
    """Return the training process that owns a run, or None if the run has no readable owner file."""
    try:
        return Owner(**json.loads(storage.read(OWNER)))
    except (OSError, TypeError, ValueError):
        return None


def check_owner(storage: Storage, token: str) -> None:
    """Raise EngineError if another training process has since taken over the run, or if the run is gone."""
    owner = read_owner(storage)
    if owner is None and storage.can_rename:
        raise EngineError(
            f"{storage.root} {STALE}: its {OWNER} is gone, so it was moved or removed",
            hint="do not move or remove the folder of a run while it trains",
        )
    if owner is not None and owner.token != token:
        raise EngineError(f"{storage.root} {STALE}: {owner} has taken over")


_held: dict[tuple[str, str, int], RunLock] = {}


def take_run(storage: Storage, *, job: str, attempt: int, preemption: Preemption) -> RunLock:
    """Lock a run for this training process, or share the lock that this process already holds.

    If another process holds the lock, this warns and waits for its end, and raises SpecError if it
    continues. A later attempt of the same job takes over, because its launcher considers the earlier one
    dead.
    """
    key = (storage.root, job, attempt)
    lock = _held.get(key)
    if lock is None or not lock.is_held or lock.process_id != os.getpid():
        lock = _held[key] = RunLock(storage, job=job, attempt=attempt, preemption=preemption)
    lock.num_users += 1
    return lock


class RunLock:
    """Lock of one run, held by this process."""

    def __init__(self, storage: Storage, *, job: str, attempt: int, preemption: Preemption) -> None:
        self.token = secrets.token_hex(8)
        self.file: int | None = None  # descriptor, which the writer process inherits
        self.num_users = 0
        self.is_held = False
        self._storage = storage
        self._preemption = preemption
        self.process_id = os.getpid()
        self._ended = threading.Event()
        self._owner = Owner(
            token=self.token,
            job=job,
            attempt=attempt,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_space=_find_pid_space(),
            time_s=time.time(),
            lease_s=None if storage.can_rename else _LEASE_S,
        )
        try:
            if storage.can_rename:
                self._lock_folder()
            else:
                self._wait_for_lease()
            self.previous = read_owner(storage)
            self._write()
        except BaseException:
            self._close_file()
            raise
        self.is_held = True
        os.register_at_fork(after_in_child=self._close_file)  # a worker may outlive its trainer
        if not storage.can_rename:
            threading.Thread(target=self._renew, name="windlass-lease", daemon=True).start()

    def close(self) -> None:
        """Release the run when its last user in this process closes it."""
        self.num_users -= 1
        if self.num_users > 0 or not self.is_held or os.getpid() != self.process_id:
            return
        self.is_held = False
        if not self._storage.can_rename:
            self._end_lease()
        self._close_file()

    def _close_file(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def _write(self) -> None:
        self._storage.write(OWNER, json.dumps(asdict(self._owner)).encode())

    # Folders.

    def _lock_folder(self) -> None:
        if self._try_lock():
            return
        holder = read_owner(self._storage)
        limit_s = _HERE_S if _is_here(holder) or self._supersedes(holder) else _ELSEWHERE_S
        if self._wait(self._try_lock, holder, limit_s):
            return
        holder = read_owner(self._storage)
        if not self._supersedes(holder):
            raise self._refusal(holder)
        logger.warning(
            "%s still holds %s, and this is attempt %d: taking the run over",
            *(holder, self._storage.root, self._owner.attempt),
        )

    def _try_lock(self) -> bool:
        """Try to lock the folder at the root. The last holder may have renamed the folder that it locked."""
        root = self._storage.root
        self._storage.make_root()
        file = _open_lock(root)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = os.path.samestat(os.fstat(file), os.stat(f"{root}/{LOCK}"))
        except OSError as error:
            is_locked = False
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
                logger.warning(
                    "%s cannot be locked (%s): two training processes would not notice each other "
                    "before their next checkpoint",
                    *(root, error),
                )
                os.close(file)
                return True
        if is_locked:
            self.file = file
        else:
            os.close(file)
        return is_locked

    def _supersedes(self, holder: Owner | None) -> bool:
        """Return whether this is a later attempt of the holder's job, so that the holder counts as dead."""
        own = self._owner
        if holder is None or not own.job or holder.job != own.job:
            return False
        return own.attempt > holder.attempt

    # Object stores.

    def _wait_for_lease(self) -> None:
        """Wait until another process's lease expires. Raise SpecError if that process renews it."""
        holder = read_owner(self._storage)
        if holder is None or holder.lease_s is None or self._supersedes(holder) or holder.is_dead:
            return
        if time.time() - holder.time_s > _LONG_AGO_S:
            return
        now: Owner | None = holder

        def has_changed() -> bool:
            nonlocal now
            now = read_owner(self._storage)
            return now != holder

        if self._wait(has_changed, holder, 1.5 * holder.lease_s, every_s=1.0) and now is not None:
            raise self._refusal(now)

    def _renew(self) -> None:
        failed_s: float | None = None
        while not self._ended.wait(_RENEW_S):
            try:
                holder = read_owner(self._storage)
                if holder is not None and holder.token != self.token:
                    logger.error("%s %s: %s has taken over", self._storage.root, STALE, holder)
                    return
                owner = {**asdict(self._owner), "time_s": time.time()}
                self._storage.write(OWNER, json.dumps(owner).encode())
                failed_s = None
            except Exception as error:  # noqa: BLE001 - a driver's own error, retried
                failed_s = failed_s or time.monotonic()
                logger.warning(
                    "the lease of %s was not renewed for %.0f s: %s",
                    *(self._storage.root, time.monotonic() - failed_s, error),
                )

    def _end_lease(self) -> None:
        self._ended.set()
        try:
            check_owner(self._storage, self.token)
            self._storage.remove(OWNER)
        except (EngineError, OSError) as error:
            logger.warning("the lease of %s was not ended: %s", self._storage.root, error)

    # Folders and object stores.

    def _wait(
        self,
        is_over: Callable[[], bool],
        holder: Owner | None,
        limit_s: float,
        *,
        every_s: float = 0.1,
    ) -> bool:
        def log_wait(waited_s: float) -> None:
            logger.warning(
                "another training writes to %s (%s): waiting for its end, %.0f of %.0f s",
                *(self._storage.root, holder or "unknown", waited_s, limit_s),
            )

        def is_settled() -> bool:
            if self._preemption.is_announced:
                logger.warning("SIGTERM while waiting for %s: exiting", self._storage.root)
                raise SystemExit(_SIGTERM_EXIT_CODE)
            return is_over()

        log_wait(0.0)
        return wait_until(is_settled, timeout_s=limit_s, every_s=every_s, say=log_wait)

    def _refusal(self, holder: Owner | None) -> SpecError:
        return SpecError(
            f"another training writes to {self._storage.root}: {holder or 'its owner is unknown'}",
            hint="stop it, or choose another name for this run (run=, --run)",
        )


def _open_lock(root: str) -> int:
    """Open the lock file of a folder. Only users with write access to the folder can open and lock it.

    Any user who can read the folder could hold a lock on the folder itself. NFS also keeps such a lock local
    to one machine.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(f"{root}/{LOCK}", flags, 0o600)
    if os.fstat(file).st_uid == os.geteuid():
        writable = os.stat(root).st_mode & 0o222
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(file, writable | writable << 1)
    return file


def _find_pid_space() -> str:
    """Return an id of this machine's boot and this process's PID namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return ""


def _is_here(holder: Owner | None) -> bool:
    return holder is not None and holder.host == socket.gethostname() and not holder.is_dead
