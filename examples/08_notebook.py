"""A notebook: functions of cells run on nodes that stay; run a cell again after an edit, and call again.

The cells (`# %%`) are those of VS Code, Spyder and jupytext. No magic, no file to write: a function of a cell
travels as it is when it is called, with the functions and values of other cells that it uses.
"""

# %% once: two nodes of two ranks each, on a cluster if your kubeconfig names one, else on this machine
import windlass as wl

compute = wl.Compute(name="example-notebook", inactivity_ttl="30m")
SCALE = 1.0


# %% a function; torch is imported where it runs
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


# %% the function's cell again, edited; no need to send it again
def score(x: float) -> float:  # type: ignore[no-redef]
    import os

    return SCALE + x * int(os.environ["RANK"])


print(remote(1.0))

# %% when you are done; they would go by themselves after half an hour without a call
compute.teardown()
