"""Observations of torch, its random numbers, and the error written by `record`. Rank 0 fails at first."""

import json
import os
import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]


class Seeds(Dataset):
    """Dataset whose items are the seed of the worker that loads them."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.initial_seed() % (1 << 60)


def draw():
    return {
        "torch": torch.rand(2).tolist(),
        "randperm": torch.randperm(1000)[:5].tolist(),
        "dropout": torch.nn.functional.dropout(torch.ones(64)).tolist(),
        "layer": torch.nn.Linear(2, 2).weight.tolist(),
        "shuffled": [int(one) for one in DataLoader(range(1000), shuffle=True, batch_size=None)][
            :5
        ],
        "worker_seeds": [int(one) for one in DataLoader(Seeds(), num_workers=1, batch_size=None)],
        "numpy": np.random.rand(2).tolist(),
        "python": random.random(),
    }


def draw_seeded():
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    return draw()


def see():
    return {
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "default_dtype": str(torch.get_default_dtype()),
        "grad": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": [torch.cuda.is_initialized(), torch.cuda.is_available()],
        "process_group": [
            dist.is_available(),
            dist.is_initialized(),
            dist.is_torchelastic_launched(),
        ],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "compiler_is_not_loaded": "torch._dynamo" in sys.modules,
        "numpy_threads": os.environ.get("OPENBLAS_NUM_THREADS"),
    }


@record
def fail():
    raise ValueError("only the first time")


def leave(path, content):
    with open(f"{path}.part", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)


def finish():
    """Write the observations after all others, and fail on rank 0 of the first attempt."""
    seen = {"see": see(), "unseeded": {**draw(), "seed": torch.initial_seed()}}
    generator = torch.Generator()
    seen["unseeded"]["new_generator"] = generator.seed()
    seen["seeded"] = draw_seeded()
    leave(f"torch-{attempt}-{rank}.json", seen)
    if attempt == "0" and rank == 0:
        deadline = time.monotonic() + 60
        while not os.path.exists("torch-0-1.json") and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            fail()
        finally:
            with open(os.environ["TORCHELASTIC_ERROR_FILE"]) as file:
                error = json.load(file)["message"]
            error["extraInfo"].pop("timestamp")
            leave("record.json", error)
