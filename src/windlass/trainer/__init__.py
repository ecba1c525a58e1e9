"""The calls of Kubeflow's SDKs, on Windlass: change the import and keep the rest.

    from windlass.trainer import CustomTrainer, TrainerClient
    name = TrainerClient().train(trainer=CustomTrainer(func=train, num_nodes=2))

Names are loaded on first use. Importing an SDK name that is not supported raises an error with the
alternative.
"""

from __future__ import annotations

TYPE_CHECKING = False

_MODULES = {
    "TrainerClient": "windlass.trainer.client",
    "TrainerJob": "windlass.trainer.statuses",
    **dict.fromkeys(("KubernetesBackendConfig", "LocalProcessBackendConfig"), "windlass.trainer.engine_pick"),
    **dict.fromkeys(
        (
            *("BuiltinTrainer", "TorchTuneConfig", "LoraConfig", "DataType", "Loss"),
            *("Initializer", "HuggingFaceModelInitializer"),
            *("CustomTrainer", "CustomTrainerContainer", "Event", "Runtime", "RuntimeKind"),
            *("RuntimeTrainer", "Step", "TrainerType", "TrainJob", "TrainJobTemplate"),
        ),
        "windlass.trainer.types",
    ),
}  # fmt: skip
_TUNE = (
    "a BuiltinTrainer reads JSONL with `text` or `messages`, from a volume: "
    "TrainerClient(volumes=['CLAIM:/data']) and Initializer(dataset='/data/train.jsonl')"
)
_LOAD = (
    "load data and models in the function, or from a volume: TrainerClient(volumes=['CLAIM:/data'])"
)
_INSTEAD = {
    **dict.fromkeys(
        ("TorchTuneInstructDataset", "DataFormat", "HuggingFaceDatasetInitializer"),
        _TUNE,
    ),
    **dict.fromkeys(
        (
            *("DataCacheInitializer", "S3DatasetInitializer", "S3ModelInitializer"),
            *("DATASET_PATH", "MODEL_PATH"),
        ),
        _LOAD,
    ),
    **dict.fromkeys(
        ("ContainerBackendConfig", "TrainingRuntimeSource"),
        "TrainerClient(engine='local') runs on this machine without containers",
    ),
    "update_trainjob_status": "call windlass.report(step=..., loss=...) to report a rank's progress",
    "TrainingClient": "TrainerClient also has its create_job",
}

__all__ = sorted(_MODULES)

if TYPE_CHECKING:
    from typing import Any

    from windlass.trainer.client import TrainerClient as TrainerClient
    from windlass.trainer.engine_pick import KubernetesBackendConfig as KubernetesBackendConfig
    from windlass.trainer.engine_pick import LocalProcessBackendConfig as LocalProcessBackendConfig
    from windlass.trainer.statuses import TrainerJob as TrainerJob
    from windlass.trainer.types import BuiltinTrainer as BuiltinTrainer
    from windlass.trainer.types import CustomTrainer as CustomTrainer
    from windlass.trainer.types import CustomTrainerContainer as CustomTrainerContainer
    from windlass.trainer.types import DataType as DataType
    from windlass.trainer.types import Event as Event
    from windlass.trainer.types import HuggingFaceModelInitializer as HuggingFaceModelInitializer
    from windlass.trainer.types import Initializer as Initializer
    from windlass.trainer.types import LoraConfig as LoraConfig
    from windlass.trainer.types import Loss as Loss
    from windlass.trainer.types import Runtime as Runtime
    from windlass.trainer.types import RuntimeKind as RuntimeKind
    from windlass.trainer.types import RuntimeTrainer as RuntimeTrainer
    from windlass.trainer.types import Step as Step
    from windlass.trainer.types import TorchTuneConfig as TorchTuneConfig
    from windlass.trainer.types import TrainerType as TrainerType
    from windlass.trainer.types import TrainJob as TrainJob
    from windlass.trainer.types import TrainJobTemplate as TrainJobTemplate


def explain_missing(name: str) -> str:
    """Return the alternative to an unsupported SDK name, or an empty string for other names."""
    return _INSTEAD.get(name, "")


def __getattr__(name: str) -> Any:
    if name in _INSTEAD:
        raise ImportError(f"windlass.trainer has no {name}: {_INSTEAD[name]}")
    if name not in _MODULES:
        raise AttributeError(f"module 'windlass.trainer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
