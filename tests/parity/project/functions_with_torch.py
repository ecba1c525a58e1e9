"""A function that needs torch, so ranks are forks of a process that has imported it."""

import random

import numpy as np
import torch


def draw():
    """Draw from streams that were not seeded."""
    return {
        "torch": torch.rand(2).tolist(),
        "randperm": torch.randperm(1000)[:5].tolist(),
        "numpy": np.random.rand(2).tolist(),
        "python": random.random(),
        "seed": torch.initial_seed(),
    }
