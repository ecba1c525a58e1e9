"""Translation of the SDKs' arguments to those of `wl.submit`: work, arguments, settings. Performs no I/O.

`create_job` is the call of v1 and `train` that of v2. Both become a JobRequest. The module also translates
resources such as {"cpu": "1", "memory": "2Gi", "gpu": "1"}, whose requests are also the limits. A
BuiltinTrainer becomes the command line of the recipe that fine-tunes language models. The recipe replaces
TorchTune: it trains the same models with the same losses, and options it lacks raise an error that names
them. The SDK's own objects are recognized by their class names.

`keep_present` sets the pull policy of images under a moving tag such as `latest`. Guides use such tags,
and an unreachable registry must not keep their jobs from starting. No function here contacts a cluster.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass import names
from windlass.client.compute.resources.image import Image
from windlass.errors import SpecError
from windlass.kube.objects.pod_template import pull_policy
from windlass.near_names import did_you_mean
from windlass.settings.table import BY_NAME
from windlass.spec.node_resources import read_cpus
from windlass.trainer import explain_missing
from windlass.trainer.options import ReadOptions
from windlass.trainer.sdk_errors import WrongArgument

_SETTINGS = {
    "cpu": "cpus",
    "memory": "memory",
    "storage": "ephemeral_storage",
    "ephemeral-storage": "ephemeral_storage",
}
_GPU = "nvidia.com/gpu"
_EXAMPLE = '{"cpu": "4", "memory": "16Gi", "gpu": 1}'
RECIPE = ("-m", "windlass.recipes.train_framework")
_RUNTIMES = "torchtune-"  # prefix of the TorchTune runtimes in Kubeflow Trainer
_HUB = "hf://"
_ADAPTED = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_RANK, _ALPHA = 8, 16  # defaults of TorchTune
_NO_ADAPTERS = {
    "apply_lora_to_output": "the head has no adapters",
    "lora_dropout": "adapters have no dropout",
    "quantize_base": "weights below adapters are kept in bfloat16, not quantized",
    "use_dora": "only LoRA is available",
}
_IF_MISSING = "IfNotPresent"
_PER_GPU = ("auto", "gpu")  # values of num_procs_per_worker in v1
_V1_INSTEAD = {
    "job": "run `kubectl create -f` for a manifest, and `windlass status NAME -e pytorchjob` to see it",
    "num_chief_replicas": "num_workers= counts all of them, and node 0 leads",
    "num_ps_replicas": "there are no parameter servers; num_workers= counts the workers",
    "volume_mounts": "volumes=['CLAIM:/path'] replaces it",
    "train_func_parameters": "parameters={...} is the argument of train_func",
}
_V1_KEYWORDS = (
    *("train_func", "base_image", "num_workers", "resources_per_worker", "parameters"),
    *("packages_to_install", "pip_index_url", "env_vars", "num_procs_per_worker", "queue_name"),
)
_V2_KEYWORDS = ("runtime", "initializer", "trainer", "options")


def read_resources(resources: Mapping[str, Any] | None, keyword: str) -> dict[str, Any]:
    """Translate resources to settings. `keyword` names them in errors."""
    if resources is not None and not isinstance(resources, Mapping):
        raise WrongArgument(f"{keyword} must be a dict, not {resources!r:.60}", hint=_EXAMPLE)
    settings: dict[str, Any] = {}
    for name, amount in (resources or {}).items():
        if name in _SETTINGS:
            settings[_SETTINGS[name]] = f"{amount:g}" if isinstance(amount, float) else str(amount)
            continue
        resource = _name_gpu(name)
        if not resource:
            hint = did_you_mean(name, (*_SETTINGS, "gpu"), _EXAMPLE, show=repr)
            raise WrongArgument(f"{keyword} has no {name!r}", hint=hint)
        if "gpus" in settings:
            raise WrongArgument(f"{keyword} requests GPUs of two kinds", hint=_EXAMPLE)
        settings["gpus"] = _count(name, amount, keyword)
        if resource != _GPU:
            settings["gpu_resource"] = resource
    return settings


def count_processes(resources: Mapping[str, Any] | None, keyword: str) -> int | None:
    """Return how many processes Kubeflow Trainer would start on a node. None means one per GPU, or 1."""
    settings = read_resources(resources, keyword)
    if settings.get("gpus") or not settings.get("cpus"):
        return None
    cpus = str(settings["cpus"])
    try:
        return max(1, math.ceil(read_cpus(cpus)))
    except SpecError:
        raise WrongArgument(f"{keyword}: {cpus!r} is not a number of CPUs", hint=_EXAMPLE) from None


def _name_gpu(name: Any) -> str:
    """Return the Kubernetes resource of a GPU name, or an empty string if it is not a device."""
    text = str(name)
    if text == "gpu":
        return _GPU
    if text.startswith("mig-"):
        return f"nvidia.com/{text}"
    return text if "/" in text else ""


def _count(name: str, amount: Any, keyword: str) -> int:
    try:
        number = int(str(amount))
    except ValueError:
        number = -1
    if number < 0:
        raise WrongArgument(
            f"{keyword}: {name!r} must be a whole number, not {amount!r:.40}", hint=_EXAMPLE
        )
    return number


def is_for_tuning(runtime: Any) -> bool:
    """Return whether a runtime is one of TorchTune's. Its pods fetch data and a model, but run no recipe."""
    return str(getattr(runtime, "name", runtime)).startswith(_RUNTIMES)


def read_tuning(config: Any, initializer: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the recipe's command line and environment variables for a BuiltinTrainer's config."""
    if type(config).__name__ != "TorchTuneConfig":
        raise WrongArgument(
            f"config must be a TorchTuneConfig, not {config!r:.60}",
            hint="use BuiltinTrainer(config=TorchTuneConfig(epochs=1))",
        )
    if config.dataset_preprocess_config is not None:
        raise WrongArgument(
            "dataset_preprocess_config is not supported",
            hint=explain_missing("TorchTuneInstructDataset"),
        )
    words = [*RECIPE]
    if config.dtype is not None:
        words += ["--precision", _value(config.dtype)]
    if config.batch_size is not None:
        words += ["--batch", str(config.batch_size)]
    if config.epochs is not None:
        words += ["--epochs", str(config.epochs)]
    if config.peft_config is not None:
        words += _read_adapters(config.peft_config)
    of_files, env = _read_initializer(initializer)
    return (*words, *of_files), env


def _read_adapters(peft: Any) -> list[str]:
    for name, why in _NO_ADAPTERS.items():
        if getattr(peft, name, None):
            raise WrongArgument(f"{name} is not supported: {why}", hint=f"omit {name}")
    unknown = [name for name in peft.lora_attn_modules if name not in _ADAPTED]
    if unknown:
        raise WrongArgument(
            f"lora_attn_modules has no {unknown[0]!r}", hint=f"use {', '.join(_ADAPTED)}"
        )
    targets = [_ADAPTED[name] for name in peft.lora_attn_modules]
    targets += _MLP if peft.apply_lora_to_mlp else ()
    if not targets:
        raise WrongArgument(
            "no layer would get adapters", hint='use lora_attn_modules=["q_proj", "v_proj"]'
        )
    rank = _RANK if peft.lora_rank is None else peft.lora_rank
    alpha = _ALPHA if peft.lora_alpha is None else peft.lora_alpha
    words = ["--lora", str(rank), "--lora-alpha", str(alpha)]
    return [*words, "--lora-targets", ",".join(targets)]


def _read_initializer(initializer: Any) -> tuple[list[str], dict[str, str]]:
    """Return the flags for the model and the data, and the environment variable with the hub's token."""
    model: Any = getattr(initializer, "model", None)
    if type(model).__name__ != "HuggingFaceModelInitializer":
        raise WrongArgument(
            "a BuiltinTrainer needs a model"
            if model is None
            else f"a {type(model).__name__} is not supported",
            hint='use initializer=Initializer(model=HuggingFaceModelInitializer("hf://ID"))',
        )
    words = ["--model", model.storage_uri.removeprefix(_HUB)]
    dataset = initializer.dataset
    if dataset is not None:
        if not isinstance(dataset, str):
            kind = type(dataset).__name__
            raise WrongArgument(
                f"a {kind} is not supported", hint=explain_missing("HuggingFaceDatasetInitializer")
            )
        words += ["--train-file", dataset]
    return words, {"HF_TOKEN": model.access_token} if model.access_token else {}


def _value(choice: Any) -> str:
    return str(getattr(choice, "value", choice))


def keep_present(image: str) -> tuple[Mapping[str, Any], str]:
    """Return a patch of the pod template and a note about it, or two empty values if the tag is fixed."""
    if not image or pull_policy(image) == _IF_MISSING:
        return {}, ""
    # patches apply before the engine renames the container, so use Windlass's own name
    ours = {"name": names.CONTAINER, "imagePullPolicy": _IF_MISSING}
    note = f"{image} is only pulled where it is missing; use a fixed tag to choose a version"
    return {"spec": {"containers": [ours]}}, note


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job in terms of `wl.submit`."""

    target: Callable[..., Any] | tuple[str, ...]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_v1_job(
    train_func: Any,
    *,
    name: str,
    base_image: str | None,
    parameters: Mapping[str, Any] | None,
    num_workers: int,
    num_procs_per_worker: int | str | None,
    resources_per_worker: Mapping[str, Any] | None,
    packages: Iterable[str] | None,
    pip_index_urls: Iterable[str],
    env_vars: Any,
    more: Mapping[str, Any],
) -> JobRequest:
    """Translate a `create_job` call. As in the SDK, `parameters` is one argument of the function."""
    others = _check_more(more)
    if not callable(train_func):
        raise WrongArgument(
            f"train_func must be a function, not {train_func!r:.60}",
            hint="run a script with `windlass run SCRIPT -e trainjob`",
        )
    keyword = "resources_per_worker"
    settings = {
        **others,
        **read_resources(resources_per_worker, keyword),
        "nodes": num_workers,
        "env": _read_env(env_vars, packages, pip_index_urls),
    }
    if num_procs_per_worker == "cpu":
        settings["procs"] = count_processes(resources_per_worker, keyword) or 1
    elif num_procs_per_worker is not None and num_procs_per_worker not in _PER_GPU:
        settings["procs"] = num_procs_per_worker
    if base_image:
        settings["image"] = base_image
    args = () if parameters is None else (parameters,)
    return JobRequest(target=train_func, args=args, name=name, settings=settings)


def read_trainer(trainer: Any, options: ReadOptions, initializer: Any = None) -> JobRequest:
    """Translate a `train` call."""
    kind = type(trainer).__name__
    if kind == "BuiltinTrainer":
        return _read_builtin(trainer, options, initializer)
    check_initializer(initializer)
    if kind == "CustomTrainer":
        request = _read_function(trainer, options)
    elif kind == "CustomTrainerContainer":
        request = _read_container(trainer, options)
    elif trainer is None:
        raise WrongArgument(
            "trainer= is missing, so there is nothing to run",
            hint="pass trainer=CustomTrainer(func=...)",
        )
    else:
        hint = explain_missing(kind) or "pass trainer=CustomTrainer(func=...)"
        raise WrongArgument(f"a {kind} is not a supported trainer", hint=hint)
    procs = count_processes(trainer.resources_per_node, "resources_per_node")
    settings = {
        **read_resources(trainer.resources_per_node, "resources_per_node"),
        **({"nodes": trainer.num_nodes} if trainer.num_nodes is not None else {}),
        **({"procs": procs} if procs is not None else {}),
        **({"image": trainer.image} if trainer.image else {}),
        **options.settings,
        **request.settings,
    }
    return JobRequest(
        target=request.target, kwargs=request.kwargs, name=options.name, settings=settings
    )


def _read_builtin(trainer: Any, options: ReadOptions, initializer: Any) -> JobRequest:
    if options.command:
        raise WrongArgument(
            "TrainerCommand and TrainerArgs are for a CustomTrainerContainer",
            hint="BuiltinTrainer runs a recipe; pass its settings in config",
        )
    config = trainer.config
    words, env = read_tuning(config, initializer)
    settings = {
        **read_resources(config.resources_per_node, "resources_per_node"),
        **({"nodes": config.num_nodes} if config.num_nodes is not None else {}),
        **options.settings,
        "env": env,
    }
    return JobRequest(target=words, name=options.name, settings=settings)


def _read_function(trainer: Any, options: ReadOptions) -> JobRequest:
    if options.command:
        raise WrongArgument(
            "TrainerCommand and TrainerArgs are for a CustomTrainerContainer",
            hint="CustomTrainer runs its func; pass arguments in func_args",
        )
    if not callable(trainer.func):
        raise WrongArgument(f"func must be a function, not {trainer.func!r:.60}")
    env = _read_env(trainer.env, trainer.packages_to_install, trainer.pip_index_urls)
    return JobRequest(
        target=trainer.func, kwargs=dict(trainer.func_args or {}), settings={"env": env}
    )


def _read_container(trainer: Any, options: ReadOptions) -> JobRequest:
    if not options.command:
        raise WrongArgument(
            "a CustomTrainerContainer needs a command, because the image's own command is unknown",
            hint='pass options=[TrainerCommand(["torchrun", "/app/main.py"])]',
        )
    settings = {"env": _read_env(trainer.env, (), ()), "in_image": True}
    return JobRequest(target=options.command, settings=settings)


def check_train_keywords(wrong: Mapping[str, Any]) -> None:
    """Raise WrongArgument for a keyword that `train` does not have."""
    for name in wrong:
        hint = did_you_mean(name, _V2_KEYWORDS, show=repr)
        if name in ("func", "func_args", "num_nodes", "resources_per_node", "image", "env"):
            hint = f"use trainer=CustomTrainer({name}=...)"
        elif name == "name":
            hint = "use options=[Name(...)], from windlass.trainer.options"
        raise WrongArgument(f"train has no keyword {name!r}", hint=hint)


def check_initializer(initializer: Any) -> None:
    """Raise WrongArgument for an initializer, which only a BuiltinTrainer can use."""
    if initializer is not None:
        kind = type(initializer).__name__
        hint = explain_missing(kind) or explain_missing("S3ModelInitializer")
        raise WrongArgument("only a BuiltinTrainer supports initializers", hint=hint)


def check_settings(what: str, given: Mapping[str, Any], own: Iterable[str]) -> None:
    """Raise WrongArgument for keywords that are neither settings nor the call's own."""
    for name in given:
        if name not in BY_NAME:
            hint = did_you_mean(name, sorted({*BY_NAME, *own}), show=repr)
            raise WrongArgument(f"{what} has no keyword {name!r}", hint=hint)


def _check_more(more: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the other keywords of `create_job` to settings."""
    settings = {name: value for name, value in more.items() if value is not None}
    for name, hint in _V1_INSTEAD.items():
        if name in settings:
            raise WrongArgument(f"create_job takes no {name}", hint=hint)
    kind = settings.pop("job_kind", "PyTorchJob")
    if kind != "PyTorchJob":
        raise WrongArgument(f"job_kind {kind} is not supported", hint="omit job_kind")
    if (queue := settings.pop("queue_name", None)) is not None:
        settings["queue"] = queue
    check_settings("create_job", settings, _V1_KEYWORDS)
    return settings


def _read_env(
    given: Any, packages: Iterable[str] | None, pip_index_urls: Iterable[str]
) -> dict[str, str]:
    """Return the variables of every rank. Packages become a variable with steps that each rank runs first."""
    env = {} if given is None else _read_variables(given)
    if not packages:
        return env
    first, *others = _read_words(pip_index_urls) or [""]
    index = ["--index-url", first] if first else []
    index += [word for url in others for word in ("--extra-index-url", url)]
    steps = Image().pip_install([*index, *_read_words(packages)]).plain_steps()
    return {names.STEPS: json.dumps(steps), **env}


def _read_words(given: Iterable[str]) -> list[str]:
    """Return a list of strings. A single string is one item, not a list of letters."""
    return [given] if isinstance(given, str) else [*given]


def _read_variables(given: Any) -> dict[str, str]:
    """Read a dict, or a list of objects with a name and a value as in v1."""
    if isinstance(given, Mapping):
        return {str(key): str(value) for key, value in given.items()}
    variables: dict[str, str] = {}
    for one in given if isinstance(given, (list, tuple)) else [given]:
        name, value = getattr(one, "name", None), getattr(one, "value", None)
        if not isinstance(name, str) or not isinstance(value, str):
            raise WrongArgument(
                f"environment variables must be a dict, not {given!r:.60}",
                hint='use {"NAME": "value"}; for a Secret, use TrainerClient(secrets=["NAME=SECRET:KEY"])',
            )
        variables[name] = value
    return variables
