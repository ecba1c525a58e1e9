"""Script whose restart is measured on a cluster. All ranks step, one is killed, all ranks step again.

It runs alone in the pods. In the first attempt, the last rank prints the time and kills itself with SIGKILL.
In the second attempt, each rank prints when it finished its first all-reduce.
"""

import json
import os
import signal
import time

import torch
import torch.distributed as dist

_STEPS_BEFORE = 20

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


def print_stamp(moment: str) -> None:
    found = {"rank": rank, "size": size, "attempt": attempt, moment: time.time()}
    print("BENCH " + json.dumps(found), flush=True)


for step in range(1000 if attempt == 0 else 5):
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    if value.item() != size * (size + 1) / 2:
        raise SystemExit(f"rank {rank}: the sum of 1..{size} came out as {value.item()}")
    if step == 0:
        print_stamp("stepped")
    if attempt == 0 and step == _STEPS_BEFORE and rank == size - 1:
        print_stamp("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
if attempt == 0:
    raise SystemExit(f"rank {rank}: continued stepping after a rank was killed")
dist.destroy_process_group()
