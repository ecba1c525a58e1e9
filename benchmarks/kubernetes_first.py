"""Script whose start is measured on a cluster. Every rank performs one all-reduce.

It runs alone in the pods, with only torch and the standard library. Each rank prints one line with the time
of each phase. The line also has the start times of the pod's first process and of the rank's own process,
according to the kernel.
"""

import time

STAMPS = {"script": time.time()}

import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def started_s(pid: int) -> float:
    """Return when a process began, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")


STAMPS["imported"] = time.time()
dist.init_process_group("gloo")
STAMPS["group"] = time.time()
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.tensor([rank + 1.0])
dist.all_reduce(value)
STAMPS["reduced"] = time.time()
if value.item() != size * (size + 1) / 2:
    raise SystemExit(f"rank {rank}: the sum of 1..{size} came out as {value.item()}")
STAMPS["container"] = started_s(1)
STAMPS["parent"] = started_s(os.getppid())
STAMPS["process"] = started_s(os.getpid())
print("BENCH " + json.dumps({"rank": rank, "size": size, **STAMPS}), flush=True)
dist.destroy_process_group()
