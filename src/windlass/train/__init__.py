"""Training library: the code around a model that users would otherwise write themselves.

    from windlass.train import get_context

Runs in ranks under `windlass run` or plain torchrun, or in a single process without a launcher. Windlass
ships it with every job that imports it. It therefore imports only modules from the agent's archive, never the
client or an engine. Names are loaded on first use. torch is imported only by the modules that need it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without importing typing

_MODULES = {
    "EvalLoader": "windlass.train.data.loader",
    "JsonlRows": "windlass.train.data.jsonl",
    "Loader": "windlass.train.data.loader",
    "PackedTokens": "windlass.train.data.token_packing",
    "TokenShards": "windlass.train.data.token_shards",
    "cache_tokens": "windlass.train.data.token_cache",
    "Meters": "windlass.train.trainer.meters",
    "Tracker": "windlass.train.trackers.tracker",
    "TrackerGroup": "windlass.train.trackers.tracker_group",
    "make_trackers": "windlass.train.trackers.tracker_table",
    "lay_out": "windlass.train.parallel.strategies",
    "evaluate": "windlass.train.trainer.evaluation",
    "read_shape": "windlass.train.parallel.shape",
    "TrainResult": "windlass.train.trainer.trainer_save",
    "TrainerOptions": "windlass.train.trainer.trainer_options",
    "TorchTrainer": "windlass.train.trainer.torch_trainer",
    "Shape": "windlass.train.parallel.shape",
    "Preempted": "windlass.train.trainer.torch_trainer",
    "ConsoleCallback": "windlass.train.trainer.callbacks",
    "Callback": "windlass.train.trainer.callbacks",
    "Checkpoints": "windlass.train.checkpoint.checkpoints",
    "export_hf": "windlass.train.checkpoint.hf_export",
    "Context": "windlass.train.parallel.context",
    "get_context": "windlass.train.parallel.context",
    "Preemption": "windlass.train.preemption",
}

__all__ = sorted(_MODULES)

if TYPE_CHECKING:
    from typing import Any

    from windlass.train.checkpoint.checkpoints import Checkpoints as Checkpoints
    from windlass.train.checkpoint.hf_export import export_hf as export_hf
    from windlass.train.data.jsonl import JsonlRows as JsonlRows
    from windlass.train.data.loader import EvalLoader as EvalLoader
    from windlass.train.data.loader import Loader as Loader
    from windlass.train.data.token_cache import cache_tokens as cache_tokens
    from windlass.train.data.token_packing import PackedTokens as PackedTokens
    from windlass.train.data.token_shards import TokenShards as TokenShards
    from windlass.train.parallel.context import Context as Context
    from windlass.train.parallel.context import get_context as get_context
    from windlass.train.parallel.shape import Shape as Shape
    from windlass.train.parallel.shape import read_shape as read_shape
    from windlass.train.parallel.strategies import lay_out as lay_out
    from windlass.train.preemption import Preemption as Preemption
    from windlass.train.trackers.tracker import Tracker as Tracker
    from windlass.train.trackers.tracker_group import TrackerGroup as TrackerGroup
    from windlass.train.trackers.tracker_table import make_trackers as make_trackers
    from windlass.train.trainer.callbacks import Callback as Callback
    from windlass.train.trainer.callbacks import ConsoleCallback as ConsoleCallback
    from windlass.train.trainer.evaluation import evaluate as evaluate
    from windlass.train.trainer.meters import Meters as Meters
    from windlass.train.trainer.torch_trainer import Preempted as Preempted
    from windlass.train.trainer.torch_trainer import TorchTrainer as TorchTrainer
    from windlass.train.trainer.trainer_options import TrainerOptions as TrainerOptions
    from windlass.train.trainer.trainer_save import TrainResult as TrainResult


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'windlass.train' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        raise ModuleNotFoundError(
            f"windlass.train.{name} needs {error.name}, which is not installed here: "
            "run `pip install 'windlass[train]'`, or use an image that has it",
            name=error.name,
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
