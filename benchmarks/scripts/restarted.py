"""Script whose restart is measured. All ranks step, one is killed, all ranks step again."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

out, attempt = Path(os.environ["BENCH_OUT"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
step = 0
while attempt == "0" or step < 5:  # the first attempt steps until it is killed
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    now_s = time.time()
    if value.item() != size * (size + 1) / 2:
        raise SystemExit(f"rank {rank}: the sum of 1..{size} came out as {value.item()}")
    step += 1
    if step == 1:
        beside = out / f".{attempt}-{rank}"
        beside.write_text(f"{os.getpid()} {now_s!r}")
        beside.rename(out / f"attempt-{attempt}-rank-{rank}")
    time.sleep(0.01)
dist.destroy_process_group()
