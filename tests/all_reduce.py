"""A script whose ranks add up ones and say the sum: what tests give to a torchrun of somebody else's pods."""

from __future__ import annotations

# Each line is written in one piece: torchrun's workers share a pipe, and `python -u`, with which torchrun
# starts them, writes the end of a printed line apart.
ALL_REDUCE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""
