"""Decorators: a function that declares where it runs. Its nodes stay up, so later calls start immediately.

    windlass deploy examples/07_decorators.py      # starts the nodes and returns
    python examples/07_decorators.py               # calls the function, from this or any other folder

Edit the function and deploy it again to run the new code on the same nodes. They stop after ten minutes
without a call, or with `windlass compute rm estimates`.
"""

import windlass as wl


@wl.compute(name="estimates", inactivity_ttl="10m")
@wl.distribute(framework="pytorch", workers=2, procs=2)
def estimate_pi(num_points: int) -> float:
    """Throw darts on each rank, then count them together."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rng = torch.Generator().manual_seed(dist.get_rank())
    inside = (torch.rand(num_points, 2, generator=rng).square().sum(dim=1) < 1).sum()
    dist.all_reduce(inside)
    pi = 4 * inside.item() / num_points / dist.get_world_size()
    dist.destroy_process_group()
    return pi


if __name__ == "__main__":
    print(f"from every rank: {estimate_pi(1_000_000)}")
    print(f"by its name alone: {wl.get('estimate_pi')(1000)}")
