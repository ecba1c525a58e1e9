"""Script whose start is measured. Every rank performs one all-reduce."""

import time

STAMPS = {"script": time.time()}

import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

if os.environ.get("BENCH_IMPORTS"):  # modules that are not preloaded
    for name in os.environ["BENCH_IMPORTS"].split(","):
        __import__(name)
STAMPS["imported"] = time.time()
dist.init_process_group("gloo")
STAMPS["group"] = time.time()
rank, size = dist.get_rank(), dist.get_world_size()
value = torch.tensor([rank + 1.0])
dist.all_reduce(value)
STAMPS["reduced"] = time.time()
if value.item() != size * (size + 1) / 2:
    raise SystemExit(f"rank {rank}: the sum of 1..{size} came out as {value.item()}")
beside = Path(os.environ["BENCH_OUT"], f".{rank}")
beside.write_text(json.dumps(STAMPS))
beside.rename(beside.with_name(f"rank-{rank}"))
dist.destroy_process_group()
