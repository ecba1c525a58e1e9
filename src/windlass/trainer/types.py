"""The records of Kubeflow's SDK, with its names and fields: what `train` takes and what `get_job` gives.

Plain data. A TrainJob is what was seen when it was asked for; its `results` are an addition of ours.
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
    """A function to run on every rank: it travels with all that it refers to.

    func: the function.
    func_args: its keyword arguments.
    image: the pods' image; None: the runtime's.
    packages_to_install: packages for `pip install`, before the function runs.
    pip_index_urls: where they come from: an index, and more of them; empty: what the image's pip uses.
    num_nodes: how many nodes; None: one.
    resources_per_node: such as {"gpu": 4, "cpu": 5, "memory": "10G"}.
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
    """A program of an image; options say which: TrainerCommand, TrainerArgs.

    image: the pods' image.
    num_nodes: how many nodes; None: one.
    resources_per_node: such as {"gpu": 4, "cpu": 5, "memory": "10G"}.
    env: environment variables of every node.
    """

    image: str
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None
    env: dict[str, str] | None = None


class DataType(enum.Enum):
    """Numbers that a fine-tuning computes with."""

    BF16 = "bf16"
    FP32 = "fp32"


class Loss(enum.Enum):
    """Loss of a fine-tuning: cross entropy, whose logits the recipe computes in pieces too."""

    CEWithChunkedOutputLoss = "torchtune.modules.loss.CEWithChunkedOutputLoss"


@dataclass
class LoraConfig:
    """Adapters of a fine-tuning.

    apply_lora_to_mlp: on the layers of MLPs, too.
    apply_lora_to_output: not supported.
    lora_attn_modules: the layers of attention: q_proj, k_proj, v_proj, output_proj.
    lora_rank: their rank; None: 8.
    lora_alpha: their scale, times their rank; None: 16.
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
    """Settings of a fine-tuning; None: the recipe's own.

    dtype: numbers to compute with.
    batch_size: rows of one optimizer step, over all ranks.
    epochs: how often the data are read.
    loss: cross entropy.
    num_nodes: how many nodes; None: one.
    peft_config: adapters; None: all weights are trained.
    dataset_preprocess_config: not supported; None.
    resources_per_node: such as {"gpu": 4, "cpu": 5, "memory": "10G"}.
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

    config: its settings.
    """

    config: TorchTuneConfig


@dataclass
class HuggingFaceModelInitializer:
    """The model that a BuiltinTrainer trains.

    storage_uri: hf://ID of the hub, or a folder.
    ignore_patterns: not used: only what is needed is downloaded.
    access_token: the hub's token.
    """

    storage_uri: str
    ignore_patterns: list[str] | None = None
    access_token: str | None = None


@dataclass
class Initializer:
    """The data and the model of a BuiltinTrainer.

    dataset: a JSONL file, or a folder of them; None: /data/train.jsonl.
    model: HuggingFaceModelInitializer.
    """

    dataset: str | None = None
    model: HuggingFaceModelInitializer | None = None


class TrainerType(enum.Enum):
    """What a runtime is for."""

    CUSTOM_TRAINER = "CustomTrainer"
    BUILTIN_TRAINER = "BuiltinTrainer"


class RuntimeKind(enum.Enum):
    """Whose a runtime is: the cluster's or the namespace's."""

    CLUSTER_TRAINING_RUNTIME = "ClusterTrainingRuntime"
    TRAINING_RUNTIME = "TrainingRuntime"


@dataclass
class RuntimeTrainer:
    """The trainer of a runtime: its image and its size."""

    trainer_type: TrainerType
    framework: str
    image: str
    num_nodes: int = 1
    device: str = UNKNOWN
    device_count: str = UNKNOWN


@dataclass
class Runtime:
    """A blueprint that an admin has made for jobs."""

    name: str
    trainer: RuntimeTrainer
    kind: RuntimeKind
    pretrained_model: str | None = None


@dataclass
class Step:
    """One node of a job: `node-0` is the first."""

    name: str
    status: str | None
    pod_name: str
    device: str = UNKNOWN
    device_count: str = UNKNOWN


@dataclass
class TrainJob:
    """A job as it was when it was asked for."""

    name: str
    runtime: Runtime
    steps: list[Step]
    num_nodes: int
    creation_timestamp: datetime
    status: str = UNKNOWN
    _job: Job | None = field(default=None, init=False, repr=False, compare=False)

    def bind(self, job: Job) -> None:
        """Said by the client that made the record."""
        self._job = job

    @property
    def job(self) -> Job:
        """The same as Windlass has it: logs, verdict, results."""
        if self._job is None:
            raise SpecError(
                f"this TrainJob {self.name} was not given by a client",
                hint=f"TrainerClient().get_job({self.name!r}).results()",
            )
        return self._job

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """What the function returned on every rank, in rank order; raises what it raised.

        timeout_s: how long to wait for the job's end; None: for ever.
        """
        return self.job.results(timeout_s=timeout_s)


@dataclass
class Event:
    """One thing that happened to a job, or to what it is made of."""

    involved_object_kind: str
    involved_object_name: str
    message: str
    reason: str
    event_time: datetime


@dataclass
class TrainJobTemplate:
    """What `train` takes, kept together: `train(**template)`.

    trainer: the function and its nodes.
    runtime: a runtime, or its name; None: torch-distributed.
    initializer: the model and the data of a BuiltinTrainer.
    """

    trainer: CustomTrainer | BuiltinTrainer
    runtime: str | Runtime | None = None
    initializer: Initializer | None = None

    def keys(self) -> list[str]:
        return ["trainer", "runtime", "initializer"]

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)
