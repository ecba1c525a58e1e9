"""What is timed in a restart on a cluster: all ranks step, one is killed, all ranks step again.

Runs in the pods, alone. The last rank kills itself with SIGKILL in the first attempt and says when, just
before; in the second each rank says when its first all-reduce was done.
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


def say(what: str) -> None:
    found = {"rank": rank, "size": size, "attempt": attempt, what: time.time()}
    print("BENCH " + json.dumps(found), flush=True)


for step in range(1000 if attempt == 0 else 5):
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    if value.item() != size * (size + 1) / 2:
        raise SystemExit(f"rank {rank}: the sum of 1..{size} came out as {value.item()}")
    if step == 0:
        say("stepped")
    if attempt == 0 and step == _STEPS_BEFORE and rank == size - 1:
        say("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
if attempt == 0:
    raise SystemExit(f"rank {rank}: a rank was killed, and this one stepped on")
dist.destroy_process_group()
