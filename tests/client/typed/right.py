"""Correct user code for a type checker. `tests/client/test_keywords.py` runs mypy on it."""

from pathlib import Path

import windlass as wl


def train(lr: float) -> float:
    return lr


results: list[object] = wl.run(
    train, kwargs={"lr": 0.1}, nodes=2, procs=4, env={"A": "1"}, quiet=True
)
job: wl.Job = wl.submit(
    "train.py",
    ["--lr", "1e-3"],
    nodes="2:4",
    gpus=8,
    engine="kubernetes",
    timeout_s="1h",
    run_as="none",
)
wl.run([Path("a.sh").name], memory="1Gi", cpus=0.5, secrets=["hf"], start="spawn", preload=None)

compute = wl.Compute(
    gpus=8,
    memory="512Gi",
    image=wl.images.pytorch("24.08-py3").pip_install("einops"),
    volumes=[wl.Volume(name="data", size="1Ti", mount_path="/data")],
    secrets=["wandb", wl.Secret("hf")],
    inactivity_ttl=None,
)
remote = wl.fn(train, timeout=5).to(compute).distribute("pytorch", workers=4, procs=2)
remote.options(collect="head", ranks=[0, 1]).distribute(workers="2:4")
wl.Compute(name="a").distribute(num_workers=2, nproc_per_node=8).up()
wl.app("torchrun train.py", replicas=2, gpus=8, image="a:1", env={"A": 1}, restarts=3).deploy()
wl.get("train", engine="local")


@wl.compute(gpus=8)
@wl.distribute("pytorch", workers=2)
def decorated() -> None: ...


@wl.distribute(framework="spmd", procs=2)
def spread() -> None: ...
