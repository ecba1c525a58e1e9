"""fn: a function on nodes that stay up. Call it, edit it and call it again: the new code runs immediately.

    python examples/04_fn.py

Runs on a cluster if your kubeconfig has one, with torch from the image in WINDLASS_IMAGE. Otherwise it runs
on this machine.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import windlass as wl

CODE = """
import torch
import torch.distributed as dist


def train(lr: float) -> float:
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR ... are set; every call is a new world
    loss = torch.tensor(lr * (dist.get_rank() + 1))
    dist.all_reduce(loss)
    return loss.item()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:  # stands in for your project
        script = Path(folder, "training.py")
        script.write_text(CODE)
        sys.path.insert(0, folder)
        from training import train

        compute = wl.Compute(name="example-fn", root=folder, inactivity_ttl="10m")
        remote = wl.fn(train).to(compute).distribute("pytorch", workers=2, procs=2)
        call("first call", remote)
        call("second call", remote)
        script.write_text(CODE.replace("loss.item()", "10 * loss.item()"))  # as your editor would
        call("after an edit", remote)
        compute.teardown()


def call(what: str, remote: Callable[..., list[float]]) -> None:
    began_s = time.perf_counter()
    results = remote(lr=0.5)  # one entry per rank, in rank order
    print(f"{what:<14} {results}  {time.perf_counter() - began_s:.2f} s")


if __name__ == "__main__":
    main()
