"""Records of Kubeflow's SDK with its names and fields: arguments of `train` and results of `get_job`.

Plain data. A TrainJob is a snapshot. Its `results` method is an addition of Windlass.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from windlass.client.jobs.job import Job
from windlass.errors import SpecError

UNKNOWN = "Unknown"


@dataclass
class CustomTrainer:
    """A function to run on every rank, sent together with everything it refers to.

    func: the function.
    func_args: keyword arguments of the function.
    image: the pods' image (default: the runtime's).
    packages_to_install: packages for `pip install`, installed before the function runs.
    pip_index_urls: the package index, then extra indexes (default: the one configured in the image).
    num_nodes: number of nodes (default: 1).
    resources_per_node: resources of each node, such as {"gpu": 4, "cpu": 5, "memory": "10G"}.
    env: environment variables of every rank.
    """

    func: Callable[..., Any]
    func_args: dict[str, Any] | None = None
    image: str | None = None
    packages_to_install: list[str] | None = None
    pip_index_urls: list[str] = field(default_factory=list)
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: dict[str, str] | None = None


@dataclass
class CustomTrainerContainer:
    """A program in an image, chosen with the options TrainerCommand and TrainerArgs.

    image: the pods' image.
    num_nodes: number of nodes (default: 1).
    resources_per_node: resources of each node, such as {"gpu": 4, "cpu": 5, "memory": "10G"}.
    env: environment variables of every node.
    """

    image: str
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: dict[str, str] | None = None


class DataType(enum.Enum):
    """Precision of a fine-tuning."""

    BF16 = "bf16"
    FP32 = "fp32"


class Loss(enum.Enum):
    """Loss of a fine-tuning: cross entropy with logits computed in chunks, as in the recipe."""

    CEWithChunkedOutputLoss = "torchtune.modules.loss.CEWithChunkedOutputLoss"


@dataclass
class LoraConfig:
    """Adapters of a fine-tuning.

    apply_lora_to_mlp: also adapt the layers of MLPs.
    apply_lora_to_output: not supported.
    lora_attn_modules: the attention layers to adapt: q_proj, k_proj, v_proj, output_proj.
    lora_rank: rank of the adapters (default: 8).
    lora_alpha: scale of the adapters, times their rank (default: 16).
    lora_dropout: not supported.
    quantize_base: not supported.
    use_dora: not supported.
    """

    apply_lora_to_mlp: bool | None = None
    apply_lora_to_output: bool | None = None
    lora_attn_modules: list[str] = field(
        default_factory=lambda: ["q_proj", "v_proj", "output_proj"]
    )
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_dropout: float | None = None
    quantize_base: bool | None = None
    use_dora: bool | None = None


@dataclass
class TorchTuneConfig:
    """Settings of a fine-tuning, with the recipe's defaults.

    dtype: precision.
    batch_size: rows per optimizer step, over all ranks.
    epochs: number of passes over the data.
    loss: cross entropy.
    num_nodes: number of nodes (default: 1).
    peft_config: adapters (default: all weights are trained).
    dataset_preprocess_config: not supported, must be None.
    resources_per_node: resources of each node, such as {"gpu": 4, "cpu": 5, "memory": "10G"}.
    """

    dtype: DataType | None = None
    batch_size: int | None = None
    epochs: int | None = None
    loss: Loss | None = None
    num_nodes: int | None = None
    peft_config: LoraConfig | None = None
    dataset_preprocess_config: None = None
    resources_per_node: dict[str, Any] | None = None


@dataclass
class BuiltinTrainer:
    """The recipe that fine-tunes language models, `windlass.recipes.train_framework`.

    config: settings of the recipe.
    """

    config: TorchTuneConfig


@dataclass
class HuggingFaceModelInitializer:
    """The model that a BuiltinTrainer trains.

    storage_uri: hf://ID on the Hugging Face hub, or a folder.
    ignore_patterns: ignored, because only required files are downloaded.
    access_token: token for the hub.
    """

    storage_uri: str
    ignore_patterns: list[str] | None = None
    access_token: str | None = None


@dataclass
class Initializer:
    """The data and the model of a BuiltinTrainer.

    dataset: a JSONL file, or a folder of them (default: /data/train.jsonl).
    model: HuggingFaceModelInitializer.
    """

    dataset: str | None = None
    model: HuggingFaceModelInitializer | None = None


class TrainerType(enum.Enum):
    """Kind of trainer that a runtime serves."""

    CUSTOM_TRAINER = "CustomTrainer"
    BUILTIN_TRAINER = "BuiltinTrainer"


class RuntimeKind(enum.Enum):
    """Scope of a runtime: the cluster or a namespace."""

    CLUSTER_TRAINING_RUNTIME = "ClusterTrainingRuntime"
    TRAINING_RUNTIME = "TrainingRuntime"


@dataclass
class RuntimeTrainer:
    """Image and size of a runtime's trainer."""

    trainer_type: TrainerType
    framework: str
    image: str
    num_nodes: int = 1
    device: str = UNKNOWN
    device_count: str = UNKNOWN


@dataclass
class Runtime:
    """Job template that a cluster admin has created."""

    name: str
    trainer: RuntimeTrainer
    kind: RuntimeKind
    pretrained_model: str | None = None


@dataclass
class Step:
    """A node of a job, named `node-0`, `node-1` and so on."""

    name: str
    status: str | None
    pod_name: str
    device: str = UNKNOWN
    device_count: str = UNKNOWN


@dataclass
class TrainJob:
    """Snapshot of a job."""

    name: str
    runtime: Runtime
    steps: list[Step]
    num_nodes: int
    creation_timestamp: datetime
    status: str = UNKNOWN
    _job: Job | None = field(default=None, init=False, repr=False, compare=False)

    def bind(self, job: Job) -> None:
        """Attach the job, so that `job` and `results` work. Called by the client."""
        self._job = job

    @property
    def job(self) -> Job:
        """Job in Windlass's own API, with logs, verdict and results."""
        if self._job is None:
            raise SpecError(
                f"TrainJob {self.name} was not created by a client",
                hint=f"call TrainerClient().get_job({self.name!r}).results()",
            )
        return self._job

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """Return the function's result on every rank, in rank order, or raise the function's exception.

        timeout_s: longest wait for the job's end, in seconds (default: no limit).
        """
        return self.job.results(timeout_s=timeout_s)


@dataclass
class Event:
    """An event of a job or of its objects."""

    involved_object_kind: str
    involved_object_name: str
    message: str
    reason: str
    event_time: datetime


@dataclass
class TrainJobTemplate:
    """Reusable arguments of `train`, passed as `train(**template)`.

    trainer: the function and its nodes.
    runtime: a runtime or its name (default: torch-distributed).
    initializer: the model and the data of a BuiltinTrainer.
    """

    trainer: CustomTrainer | BuiltinTrainer
    runtime: str | Runtime | None = None
    initializer: Initializer | None = None

    def keys(self) -> list[str]:
        return ["trainer", "runtime", "initializer"]

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)
