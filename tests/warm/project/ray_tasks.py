"""Functions that the Ray tests run on node 0."""

from __future__ import annotations

import os
import time
from pathlib import Path


def run_ray_job(num_tasks=100):
    import ray

    # Connect to the local Ray cluster
    ray.init(address="auto")

    @ray.remote(num_gpus=1)
    def gpu_task(i):
        return f"Task {i} on GPU"

    refs = [gpu_task.remote(i) for i in range(num_tasks)]
    return ray.get(refs)


def look():
    """Return what a call sees of its cluster. It finds the cluster without an address."""
    import ray

    ray.init()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    gpus = {node["NodeManagerAddress"]: node["Resources"].get("GPU", 0) for node in nodes}
    return {
        "address": os.environ["RAY_ADDRESS"],
        "token": os.environ["RAY_AUTH_TOKEN"],
        "rank": (os.environ["RANK"], os.environ["WORLD_SIZE"]),
        "gpus": gpus,
    }


def use_until_killed(flag):
    import ray

    ray.init()
    Path(flag).touch()
    time.sleep(600)


def train_loop(config):
    import ray.train
    import torch
    from ray.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(2, 1))
    loss = model(torch.full((4, 2), config["value"])).square().mean()
    loss.backward()
    size = torch.distributed.get_world_size()
    seen = torch.ones(1)
    torch.distributed.all_reduce(seen)
    with open(f"{config['folder']}/{ray.train.get_context().get_world_rank()}", "w") as file:
        file.write(f"{size} {int(seen)}")
    ray.train.report({"loss": float(loss)})


def train_with_ray(folder):
    """Run Ray Train's own trainer inside the call, with two workers."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init()
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={"folder": folder, "value": 0.5},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=f"{folder}/storage"),
    )
    error = trainer.fit().error
    return str(error or "")


def sum_with_ray_data():
    import ray
    import ray.data

    ray.init()
    rows = ray.data.range(100, override_num_blocks=2).map(lambda row: {"value": row["id"] * 2})
    return rows.sum("value")
