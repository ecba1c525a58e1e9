"""Functions and classes that ranks run in the warm compute tests.

The module is importable, so they are sent by reference.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WAIT_S = 60.0


def echo(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def environment(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def whoami() -> dict[str, Any]:
    """Return the rank, the PID and the agent of this process."""
    return {
        "rank": int(os.environ["RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "master": (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        "address": socket.gethostbyname(socket.gethostname()),
        "pid": os.getpid(),
        "agent": find_agent(),
    }


def find_agent() -> tuple[str, int, str]:
    """Return host, PID and start time of this rank's agent.

    A new agent has another PID or start time.
    """
    agent = _read_stat(os.getppid())[1]
    return socket.gethostname(), int(agent), _read_stat(int(agent))[19]


def _read_stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def wait_for_file(path: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)


def block(started: str, until: str) -> int:
    """Create the `started` file, and return once the `until` file exists."""
    Path(started).touch()
    wait_for_file(until)
    return os.getpid()


def take_time(word: str, seconds: float = 0.05) -> tuple[str, float, float]:
    """Return when the call ran, by a clock that all processes of the machine share."""
    begun = time.clock_gettime(time.CLOCK_BOOTTIME)
    time.sleep(seconds)
    return word, begun, time.clock_gettime(time.CLOCK_BOOTTIME)


def append(path: str, word: str) -> None:
    with open(path, "a") as file:
        file.write(f"{word}\n")


def kill_fork_server() -> None:
    """Kill the parent of rank 0, and with it the node's ranks and their store."""
    if os.environ["RANK"] == "0":
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def all_reduce(value: int = 1) -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([value + dist.get_rank()])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)


def count_up(last: int) -> Iterator[int]:
    """Yield numbers from a generator whose return value is the call's result."""
    yield from range(last)
    return "end"


def count_slowly(folder: str) -> Iterator[str]:
    """Yield the second word only after the caller has seen the first."""
    yield "first"
    wait_for_file(f"{folder}/seen")
    yield "second"


def yield_and_raise() -> Iterator[int]:
    yield 1
    raise Wrong("after one", 7)


class Wrong(Exception):
    """Exception with more than a message."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message, number)
        self.number = number


class Demanding(Exception):
    """Exception that cannot be created from its `args`."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(f"{message}!")
        self.code = code


def demand(message: str, code: int) -> None:
    raise Demanding(message, code=code)


def fail(rank: int) -> str:
    if int(os.environ["RANK"]) == rank:
        raise Wrong("as asked", 7)
    return "fine"


def leave(rank: int, code: int) -> None:
    if int(os.environ["RANK"]) == rank:
        sys.exit(code)


def die(rank: int, folder: str) -> None:
    """Kill one rank, while the others wait for a file that never appears."""
    if int(os.environ["RANK"]) == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for_file(f"{folder}/never")


def say(word: str) -> None:
    print(f"{word} from {os.environ['RANK']}")


async def answer_later(word: str) -> str:
    return word


def own_timeout(timeout: float) -> float:
    return timeout


def read_peak(pid: int | str = "self") -> int:
    """Return the peak resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def double(array: Any) -> Any:
    """Double the array in place, because ranks may write to their arguments."""
    array *= 2
    return array


def measure(array: Any) -> tuple[int, int, int]:
    """Return the array's length, and the peak memory of this rank and of its agent."""
    return len(array), read_peak(), read_peak(find_agent()[1])


def make_numpy(length: int) -> Any:
    import numpy

    return numpy.full(length, int(os.environ["RANK"]), dtype=numpy.uint8)


def make_torch(length: int) -> Any:
    import torch

    return torch.full((length,), int(os.environ["RANK"]), dtype=torch.uint8)


class Awkward:
    """Class with methods that have the names of a remote object's methods."""

    def name(self) -> str:
        return "its own name"

    def submit(self, form: str) -> str:
        return f"submitted {form}"

    def options(self) -> list[str]:
        return ["a", "b"]

    def deploy(self, *, where: str) -> str:
        return f"deployed to {where}"

    def to(self, device: str) -> str:
        return f"on {device}"

    def distribute(self, number: int) -> int:
        return number // 2

    def compute(self) -> int:
        return 42

    def teardown(self) -> str:
        return "torn down"

    def acall(self) -> str:
        return "called"

    def rebuild(self) -> str:
        return "rebuilt"


class StillAwkward(Awkward):
    pass


class Counter:
    """Object that lives on ranks."""

    def __init__(self, start: int = 0, folder: str = "") -> None:
        self.count = start
        self.born = whoami()
        if folder:
            append(f"{folder}/made-{self.born['rank']}", "made")

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    def whoami(self) -> dict[str, Any]:
        return whoami()

    def server(self) -> int:
        return os.getppid()

    def was_born(self) -> dict[str, Any]:
        return self.born

    def all_reduce(self, value: int) -> int:
        """Sum over a process group that is created once."""
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        total = torch.tensor([value])
        dist.all_reduce(total)
        return int(total)

    def fail(self) -> None:
        raise Wrong("in a method", 8)

    def die(self, rank: int) -> None:
        if int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)


class Callable:
    """Object that is callable."""

    def __call__(self, number: int) -> int:
        return number + 1


class Held:
    """Object that is sent with its bound method."""

    def __init__(self, value: int) -> None:
        self.value = value

    def read(self) -> int:
        return self.value


def leave_with(code: int | str) -> None:
    sys.exit(code)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def find_waiting() -> list[int]:
    """Return the ranks of this node that were forked for the next call, while this one runs."""
    server = os.getppid()
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        waiting = [int(pid) for pid in children if int(pid) != os.getpid() and _lives(pid)]
        if waiting:
            return waiting
        time.sleep(0.01)
    raise TimeoutError("no rank was forked ahead")


def _lives(pid: str) -> bool:
    """Return whether a process is alive and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_waiting(rank: int) -> int:
    """Kill the waiting ranks on one rank's node, and return how many there were."""
    waiting = find_waiting() if int(os.environ["RANK"]) == rank else []
    for pid in waiting:
        kill(pid)
    return len(waiting)


class Writer:
    """Object that keeps a file open, and creates a marker when its process exits."""

    def __init__(self, folder: str) -> None:
        path = f"{folder}/{os.environ['RANK']}"
        self.file = open(f"{path}.txt", "w")  # noqa: SIM115 - left open on purpose
        atexit.register(Path(f"{path}.ended").touch)

    def put(self, text: str) -> None:
        self.file.write(text)


def write_and_wait(folder: str) -> None:
    """Do what `Writer` does in a function, then wait until it is interrupted."""
    writer = Writer(folder)
    globals()["_writer"] = writer
    writer.put("x")
    Path(f"{folder}/{os.environ['RANK']}.waits").touch()
    time.sleep(600)
