"""Loaders of a trainer: from datasets, from Loaders, or from torch's DataLoaders, which are taken apart.

Called by `TorchTrainer.create_dataloaders`. Ranks that share layers (tp) read the same samples, so the
rank and the world size of a loader are those of the data, not of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from windlass.errors import SpecError
from windlass.train.loader import EvalLoader, Loader

if TYPE_CHECKING:
    from windlass.train.trainer import TorchTrainer

_OF_WORKERS = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "timeout")
_HINT = (
    "give the dataset itself, which the trainer shuffles and cuts over the ranks, or an iterable dataset "
    "that yields samples in the order you want"
)


def make_loader(data: Any, trainer: TorchTrainer) -> Loader:
    """The loader of the training data."""
    if isinstance(data, Loader):
        return data
    if data is None:
        raise SpecError(
            "there is no data to train on", hint="give data=, or override create_dataloaders"
        )
    options = trainer.options
    settings = _settings(trainer) | {
        "batch": options.samples_per_step,
        "shuffle": options.shuffle,
        "drop_last": options.drop_last,
    }
    if isinstance(data, DataLoader):
        settings |= _take_apart(data) | {
            "batch": (data.batch_size or 1) * trainer.shape.data_ranks,  # as torch counts: per rank
            "shuffle": _is_shuffled(data),
            "drop_last": data.drop_last,
        }
        data = data.dataset
    return Loader(data, micro_batch=options.micro_batch, seed=options.seed, **settings)


def make_eval_loader(data: Any, trainer: TorchTrainer) -> EvalLoader | None:
    """A loader that gives every sample once, over all ranks; None without data."""
    if data is None or isinstance(data, EvalLoader):
        return data
    if isinstance(data, Mapping):
        raise SpecError(
            f"the data to validate is a {type(data).__name__} of {', '.join(map(str, data)) or 'nothing'}",
            hint="give one dataset; call trainer.evaluate() for others in a callback's on_validation",
        )
    options = trainer.options
    settings = _settings(trainer)
    share = max(1, options.samples_per_step // trainer.shape.data_ranks)
    micro_batch = options.micro_batch or share
    if isinstance(data, DataLoader):
        settings |= _take_apart(data)
        micro_batch, data = data.batch_size or 1, data.dataset
    return EvalLoader(data, micro_batch=micro_batch, **settings)


def _settings(trainer: TorchTrainer) -> dict[str, Any]:
    return {
        "rank": trainer.context.rank // trainer.shape.tp,
        "world_size": trainer.shape.data_ranks,
        "num_workers": trainer.options.num_workers,
        "collate": trainer.collate,
        "pin_memory": trainer.device.type == "cuda",
    }


def _take_apart(loader: Any) -> dict[str, Any]:
    """What a DataLoader was told besides its batch and its order."""
    if loader.batch_size is None:
        raise SpecError(
            "a DataLoader without a batch size, or with a batch_sampler, cannot be taken apart",
            hint=_HINT,
        )
    if not isinstance(loader.dataset, IterableDataset) and not _takes_each_once(loader.sampler):
        raise SpecError(
            f"the samples that {type(loader.sampler).__name__} chooses would not be those of the training",
            hint=_HINT,
        )
    options = {name: getattr(loader, name) for name in _OF_WORKERS}
    return {
        "num_workers": loader.num_workers,
        "collate": None if loader.collate_fn is default_collate else loader.collate_fn,
        "worker_options": options if loader.num_workers else {},
    }


def _takes_each_once(sampler: Any) -> bool:
    """Whether an epoch has every sample once; one that chooses must not be left out silently."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) in (SequentialSampler, DistributedSampler)


def _is_shuffled(loader: Any) -> bool:
    """Whether a DataLoader was told to mix its samples; in which way is ours, by the seed."""
    sampler = loader.sampler
    return bool(getattr(sampler, "shuffle", isinstance(sampler, RandomSampler)))
