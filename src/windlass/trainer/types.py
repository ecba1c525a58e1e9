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
    initializer: not supported; None.
    """

    trainer: CustomTrainer
    runtime: str | Runtime | None = None
    initializer: None = None

    def keys(self) -> list[str]:
        return ["trainer", "runtime", "initializer"]

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)
