"""A small DDP training that classifies points by the arm of a spiral they lie on.

windlass run examples/01_ddp.py --nodes 2 --procs 2
torchrun --nproc-per-node 2 examples/01_ddp.py              # the same file, unchanged
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import windlass as wl

NUM_POINTS, NUM_EPOCHS = 1536, 24


def make_spiral() -> TensorDataset:
    """Return points of three arms, one per class, which are the same on every rank."""
    rng = torch.Generator().manual_seed(0)
    arm = torch.arange(NUM_POINTS) % 3
    radius = torch.rand(NUM_POINTS, generator=rng)
    angle = 4 * radius + 2 * torch.pi / 3 * arm + 0.1 * torch.randn(NUM_POINTS, generator=rng)
    return TensorDataset(torch.stack([radius * angle.sin(), radius * angle.cos()], dim=1), arm)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = make_spiral()
    sampler = DistributedSampler(data)  # each rank gets its own part
    batches = DataLoader(data, batch_size=128 // dist.get_world_size(), sampler=sampler)
    layers = nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step, total = 0, NUM_EPOCHS * len(batches)
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for points, arms in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), arms)
            loss.backward()  # gradients are averaged over all ranks here
            optimizer.step()
            step += 1
            wl.report(step=step, total=total, loss=loss)

    points, arms = data.tensors
    guesses = model(points).detach()
    accuracy = (guesses.argmax(dim=1) == arms).float().mean().item()
    loss = nn.functional.cross_entropy(guesses, arms)
    if dist.get_rank() == 0:
        print(f"final loss {loss:.4f}, {accuracy:.1%} accuracy")
    if accuracy < 0.95:
        raise RuntimeError(f"did not converge: accuracy is only {accuracy:.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
