"""A notebook: functions from cells run on nodes that stay up. Edit a cell, run it, and call the function.

The cells (`# %%`) work in VS Code, Spyder and jupytext, without magics and without writing a file. Each call
sends the current function, with the functions and values of other cells that it uses.
"""

# %% once: two nodes of two ranks each, on a cluster if your kubeconfig has one, otherwise on this machine
import windlass as wl

compute = wl.Compute(name="example-notebook", inactivity_ttl="30m")
SCALE = 1.0


# %% a function that imports torch where it runs
def score(x: float) -> float:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(x * dist.get_rank())
    dist.all_reduce(total)
    return SCALE * total.item()


# %% call it: one entry per rank
remote = wl.fn(score).to(compute).distribute("pytorch", workers=2, procs=2)
print(remote(1.0))

# %% another value, which the function uses
SCALE = 100.0
print(remote(1.0))


# %% the function's cell after an edit, which needs no further step
def score(x: float) -> float:  # type: ignore[no-redef]
    import os

    return SCALE + x * int(os.environ["RANK"])


print(remote(1.0))

# %% when you are done (otherwise the nodes stop after half an hour without a call)
compute.teardown()
