"""The program of the ranks in these tests: a small DDP training that resumes, and that can break on request.

It depends only on the step, the rank and the world size, so `trained.py` can compute the expected result.
Only this file is sent to the pods, so it imports nothing of the tests.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path("/ckpt")
SAVE_EVERY = 5
LEARNING_RATE = 0.05


def make_batch(step: int, rank: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 4, generator=generator)
    return inputs, inputs.sum(dim=1, keepdim=True)


def train(total: int = 200, pace_s: float = 0.02, fault: dict[str, Any] | None = None) -> dict:
    """Train to step `total` from the last checkpoint on. The result records what happened when."""
    import torch
    import torch.distributed as dist

    rank, attempt = int(os.environ["RANK"]), int(os.environ["WINDLASS_ATTEMPT"])
    (FOLDER / f"pid-{rank}").write_text(str(os.getpid()))
    _show_life(FOLDER / f"alive-{attempt}-{rank}")
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(_make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    start = _resume(model.module)
    print(f"attempt {attempt} starts at step {start}", flush=True)
    with open(FOLDER / f"journal-{attempt}-{rank}", "a", buffering=1) as journal:
        for step in range(start, total):
            _break(fault, rank=rank, attempt=attempt, step=step)
            inputs, wanted = make_batch(step, rank)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), wanted).backward()
            optimizer.step()
            journal.write(f"{step} {time.time()}\n")
            _report(step + 1, total)
            if rank == 0 and (step + 1) % SAVE_EVERY == 0:
                _save(model.module, step + 1)
            time.sleep(pace_s)  # stands for the work that this small model does not have
    dist.barrier()
    weights = [round(float(value), 6) for value in model.module.weight.flatten()]
    dist.destroy_process_group()
    records = (
        {path.name: path.read_text() for path in FOLDER.glob("[aj]*-*-*")} if rank == 0 else {}
    )
    return {
        "rank": rank,
        "attempt": attempt,
        "start": start,
        "weights": weights,
        "records": records,
    }


def _make_model() -> Any:
    import torch

    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def _report(step: int, total: int) -> None:
    import windlass as wl

    wl.report(step=step, total=total)
    if step % SAVE_EVERY == 0:
        print(f"step {step}", flush=True)


# -- the checkpoint ------------------------------------------------------------------------------


def _resume(model: Any) -> int:
    import torch

    if not (FOLDER / "state.pt").exists():
        return 0
    state = torch.load(FOLDER / "state.pt")
    model.load_state_dict(state["model"])
    return int(state["step"])


def _save(model: Any, step: int) -> None:
    import torch

    beside = FOLDER / "state.part"
    torch.save({"model": model.state_dict(), "step": step}, beside)
    beside.rename(FOLDER / "state.pt")


def _show_life(path: Path) -> None:
    """Record when this rank was last alive, even while it hangs in a collective."""

    def write() -> None:
        with path.open("w") as file:
            file.write(f"{time.time():<20}")  # the first time, followed by the latest one
            while True:
                file.seek(20)
                file.write(f"{time.time():<20}")
                file.flush()
                time.sleep(0.05)

    threading.Thread(target=write, daemon=True).start()


# -- faults -------------------------------------------------------------------------------------


def _break(fault: dict[str, Any] | None, *, rank: int, attempt: int, step: int) -> None:
    if fault is None or (rank, attempt, step) != (fault["rank"], fault["attempt"], fault["step"]):
        return
    print(f"rank {rank}: {fault['how']}", flush=True)
    _HOWS[fault["how"]]()


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_peer() -> None:
    """Kill the next rank, which is on the same node."""
    peer = int(os.environ["RANK"]) + 1
    pid = int((FOLDER / f"pid-{peer}").read_text())
    os.kill(pid, signal.SIGKILL)


def _raise() -> None:
    raise ValueError("this training is wrong")


def _eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(1 << 20) * 16))


def _eat_container() -> None:
    """Make the kernel choose the agent, PID 1, which ends the whole container."""
    Path("/proc/1/oom_score_adj").write_text("1000")
    _eat_memory()


def _eat_disk() -> None:
    with open("/tmp/full", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    print("the disk is full", flush=True)
    time.sleep(600)


_HOWS = {
    "is killed": _kill_self,
    "kills its neighbor": _kill_peer,
    "raises": _raise,
    "eats memory": _eat_memory,
    "eats the container's memory": _eat_container,
    "eats disk": _eat_disk,
}

if __name__ == "__main__":
    train(*(int(word) for word in sys.argv[1:]))
