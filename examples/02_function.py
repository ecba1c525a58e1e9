"""A Python function that runs on every rank and returns a list of results, in rank order.

python examples/02_function.py
"""

import windlass as wl


def estimate_pi(num_points: int) -> dict[str, float]:
    """Throw darts on each rank, then count them together."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rng = torch.Generator().manual_seed(dist.get_rank())
    darts = torch.rand(num_points, 2, generator=rng)
    inside = (darts.square().sum(dim=1) < 1).sum()
    mine = 4 * inside.item() / num_points
    dist.all_reduce(inside)
    ours = 4 * inside.item() / num_points / dist.get_world_size()
    dist.destroy_process_group()
    return {"mine": mine, "ours": ours}


def fail_on(rank: int) -> None:
    """Raise on one rank only."""
    import os

    if int(os.environ["RANK"]) == rank:
        raise ZeroDivisionError(f"rank {rank} divided by nothing")


def main() -> None:
    results = wl.run(estimate_pi, kwargs={"num_points": 1_000_000}, nodes=2, procs=2)
    for rank, result in enumerate(results):
        print(f"rank {rank}: alone {result['mine']:.4f}, together {result['ours']:.4f}")

    try:
        wl.run(fail_on, args=[1], procs=2, quiet=True)
    except ZeroDivisionError as error:  # the original type, with the rank's traceback as its cause
        print(f"came back as {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
