"""A BuiltinTrainer as the command line of the recipe that fine-tunes language models. Pure.

TorchTune is not used: the recipe trains the same models on the same losses. What it cannot do is refused by
name. Also the SDK's own objects are understood: they are known by the names of their classes.
"""

from __future__ import annotations

from typing import Any

from windlass.trainer import explain_missing
from windlass.trainer.sdk_errors import WrongArgument

RECIPE = ("-m", "windlass.recipes.train_framework")
_RUNTIMES = "torchtune-"  # names of the runtimes that Kubeflow Trainer has for TorchTune
_HUB = "hf://"
_ADAPTED = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_RANK, _ALPHA = 8, 16  # TorchTune's
_NO_ADAPTERS = {
    "apply_lora_to_output": "the head has no adapters",
    "lora_dropout": "adapters have no dropout",
    "quantize_base": "weights below adapters are kept in bfloat16, not quantised",
    "use_dora": "there is LoRA, and no DoRA",
}


def is_for_tuning(runtime: Any) -> bool:
    """Return whether a runtime is one of TorchTune's: its pods fetch data and a model, and run no recipe."""
    return str(getattr(runtime, "name", runtime)).startswith(_RUNTIMES)


def read_tuning(config: Any, initializer: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the recipe's command line and variables for a BuiltinTrainer's config."""
    if type(config).__name__ != "TorchTuneConfig":
        raise WrongArgument(
            f"config must be a TorchTuneConfig, not {config!r:.60}",
            hint="BuiltinTrainer(config=TorchTuneConfig(epochs=1))",
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
            raise WrongArgument(f"{name} is not supported: {why}", hint=f"leave {name} out")
    unknown = [name for name in peft.lora_attn_modules if name not in _ADAPTED]
    if unknown:
        raise WrongArgument(
            f"lora_attn_modules has no {unknown[0]!r}", hint=f"there are {', '.join(_ADAPTED)}"
        )
    targets = [_ADAPTED[name] for name in peft.lora_attn_modules]
    targets += _MLP if peft.apply_lora_to_mlp else ()
    if not targets:
        raise WrongArgument(
            "no layer would get adapters", hint='lora_attn_modules=["q_proj", "v_proj"]'
        )
    rank = _RANK if peft.lora_rank is None else peft.lora_rank
    alpha = _ALPHA if peft.lora_alpha is None else peft.lora_alpha
    words = ["--lora", str(rank), "--lora-alpha", str(alpha)]
    return [*words, "--lora-targets", ",".join(targets)]


def _read_initializer(initializer: Any) -> tuple[list[str], dict[str, str]]:
    """Return flags for the model and the data, and the hub's token as a variable."""
    model: Any = getattr(initializer, "model", None)
    if type(model).__name__ != "HuggingFaceModelInitializer":
        raise WrongArgument(
            "a BuiltinTrainer was not told its model"
            if model is None
            else f"a {type(model).__name__} cannot be read",
            hint='initializer=Initializer(model=HuggingFaceModelInitializer("hf://ID"))',
        )
    words = ["--model", model.storage_uri.removeprefix(_HUB)]
    dataset = initializer.dataset
    if dataset is not None:
        if not isinstance(dataset, str):
            kind = type(dataset).__name__
            raise WrongArgument(
                f"a {kind} cannot be read", hint=explain_missing("HuggingFaceDatasetInitializer")
            )
        words += ["--train-file", dataset]
    return words, {"HF_TOKEN": model.access_token} if model.access_token else {}


def _value(choice: Any) -> str:
    return str(getattr(choice, "value", choice))
