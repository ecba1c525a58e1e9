"""A process group that is created and not destroyed: no barrier, and the script just ends."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if "ddp" in sys.argv:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()
