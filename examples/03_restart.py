"""A training that loses a rank half-way and resumes from its last checkpoint.

windlass run examples/03_restart.py --procs 2 --restarts 1
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import windlass as wl

TOTAL, SAVE_EVERY, FAIL_AT = 200, 20, 110


def main() -> None:
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint = Path(tempfile.gettempdir(), f"{os.environ['TORCHELASTIC_RUN_ID']}.pt")

    model = DistributedDataParallel(nn.Linear(8, 1))  # starts from rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if checkpoint.exists():
        first, weights = torch.load(checkpoint)
        model.load_state_dict(weights)

    for step in range(first + 1, TOTAL + 1):
        points = torch.randn(64, 8)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(points).sum(dim=1), points @ torch.arange(8.0))
        loss.backward()
        optimizer.step()
        wl.report(step=step, total=TOTAL, loss=loss)
        if rank == 0 and step % SAVE_EVERY == 0:
            # write to another file and rename it, so that no partial file is ever loaded
            beside = checkpoint.with_suffix(".new")
            torch.save((step, model.state_dict()), beside)
            beside.replace(checkpoint)
        if rank == 1 and step == FAIL_AT and attempt == 0:
            raise RuntimeError(f"rank 1 fails at step {step}, once")

    if rank == 0:
        checkpoint.unlink()
        print(f"attempt {attempt} resumed from step {first}, final loss {loss:.6f}")
    if loss > 1e-3:
        raise RuntimeError(f"did not converge: loss {loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
