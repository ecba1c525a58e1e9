"""Settings of `train_framework`, and how to read them from flags or YAML. Imports no torch.

Includes every setting of `TorchTrainer`, with defaults for language models. `llm_trainer` decides the
settings that depend on the machine, such as precision, micro-batch and output folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.recipes.recipe_flags import RUN_ID, guess_out, guess_trackers, rename_flags
from windlass.train.trainer.trainer_options import TrainerOptions, read_config, read_options

SETTLED = {  # settings of a trainer that follow from others here
    "fp8": "--precision fp8 computes the blocks in float8",
    "loss": "the model computes its own loss, over the trained tokens",
    "tokens_per_sample": "--length sets how many tokens a row has",
    "flops_per_token": "it is computed from the model",
    "flops_per_sample": "it is computed from the model",
    "recompute_given": "--checkpoint-activations and --no-checkpoint-activations set it",
}
METRICS = ("loss", "perplexity")  # computed by validations
PRECISIONS = ("auto", "bf16", "fp32", "fp8")
TRAIN_FILE, VAL_FILE = "/data/train.jsonl", "/data/val.jsonl"
_LORA_LR = 2e-4
_ALIASES = {
    **RUN_ID,
    "output_dir": "out",
    "model_dir": "model_local_dir",
    "tokenizer_dir": "tokenizer_local_dir",
    "max_length": "length",
    "seq_len": "length",
    "train_data": "train_file",
    "val_data": "val_file",
    "activation_checkpointing": "checkpoint_activations",
    "gradient_checkpointing": "checkpoint_activations",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmOptions(TrainerOptions):
    """Settings for a fine-tuning run."""

    model: str | None = None  # an id on the Hugging Face hub, or a folder
    model_local_dir: str | None = None  # a folder in Hugging Face's layout
    tokenizer_local_dir: str | None = None  # a folder (default: the model's)
    local_files_only: bool = False  # use no network and download nothing
    hf_model: bool = False  # use Hugging Face's own model even if the built-in one is equivalent
    train_file: str = TRAIN_FILE  # JSONL with `text` or `messages`, a file or a folder
    val_file: str | None = None  # like train_file (default: /data/val.jsonl if it exists)
    cache: str | None = None  # folder for tokens (default: <out>/tokens)
    length: int = 2048  # tokens per row
    pack: bool = True  # put several documents in a row
    lora: int = 0  # rank of the adapters, or 0 to train all weights
    lora_alpha: int | None = None  # scale of the adapters times their rank (default: 2 x rank)
    lora_targets: tuple[str, ...] = ()  # names of layers (default: all linear layers but the head)
    precision: str = "auto"  # auto (bf16 on a GPU, fp32 on a CPU), bf16, fp32 or fp8
    fp8: bool = False  # derived from precision
    recompute_given: bool = False  # True if the user set checkpoint_activations
    eager: bool = False  # do not compile the blocks on a GPU
    export: bool = True  # export the last and best weights as folders for transformers
    sync_to: str | None = None  # a URL to which <out>/<run> is copied at the end
    epochs: int | None = None
    batch: int = 32  # rows per optimizer step, over ALL ranks
    lr: float = 2e-5  # learning rate (2e-4 with adapters)
    weight_decay: float = 0.01  # applied to matrices
    scheduler: str = "cosine"  # learning-rate schedule: constant, linear, cosine or wsd
    warmup: int = 10
    checkpoint_every: int | str | None = "10m"  # a duration or a number of steps, or 0 for none
    run: str = "run"

    @property
    def alpha(self) -> int:
        """Scale of the adapters, times their rank."""
        return 2 * self.lora if self.lora_alpha is None else self.lora_alpha

    @property
    def is_out_url(self) -> bool:
        """True if checkpoints go to an object store. Other files are then written to a local folder first."""
        return "://" in (self.out or "")

    @property
    def is_base_narrow(self) -> bool:
        """True if frozen weights are kept in bfloat16, which requires that they are not sharded."""
        return bool(self.lora) and self.precision == "bf16" and self.strategy == "ddp"

    @property
    def is_base_joined(self) -> bool:
        """True if frozen weights are kept in the layout of their matmuls. See `linear_layers`."""
        return bool(self.lora) and not self.fp8 and self.strategy == "ddp"


def read_llm_options(words: Sequence[str], environ: Mapping[str, str]) -> LlmOptions:
    """Read the settings from a command line, including `--config FILE`."""
    given = read_config(LlmOptions, rename_flags(words, _ALIASES))
    for name, instead in SETTLED.items():
        if name in given:
            raise SpecError(f"{name} cannot be set here", hint=instead)
    options = read_options(LlmOptions, _guess(given, environ), given)
    if options.precision not in PRECISIONS:
        raise SpecError(
            f"unknown --precision {options.precision}", hint=f"use one of {', '.join(PRECISIONS)}"
        )
    if not (options.model or options.model_local_dir):
        raise SpecError(
            "no model given",
            hint="pass --model ID from the Hugging Face hub, or --model-local-dir FOLDER",
        )
    if options.sync_to and options.is_out_url:
        raise SpecError(
            f"--out {options.out} is already a URL, so --sync-to has nothing to copy",
            hint="omit one of the two",
        )
    if options.length < 2:
        raise SpecError(
            f"--length {options.length}: a row needs at least two tokens",
            hint="pass 2048, for example",
        )
    if options.best_metric not in METRICS:  # fails here instead of after the first epoch
        raise SpecError(
            f"validations do not compute {options.best_metric}",
            hint=did_you_mean(options.best_metric, METRICS),
        )
    if options.lora < 0:
        raise SpecError(
            f"--lora {options.lora} is not a valid adapter rank",
            hint="use a number such as 8 or 16, or 0 to train all weights",
        )
    if options.lora_targets and not options.lora:
        raise SpecError(
            f"--lora-targets {','.join(options.lora_targets)} has no effect without adapters",
            hint="add --lora 16 for adapters of that rank",
        )
    if options.lora_alpha is not None and (options.lora_alpha < 1 or not options.lora):
        raise SpecError(
            f"--lora-alpha {options.lora_alpha} cannot scale adapters of --lora {options.lora}",
            hint="use a number of at least 1, with --lora of at least 1 (default: twice the rank)",
        )
    return replace(
        options,
        tokens_per_sample=options.length,
        recompute_given="checkpoint_activations" in given,
    )


def _guess(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return defaults that depend on the given settings and on the environment."""
    guesses = {**guess_out(environ), **guess_trackers(environ)}
    if str(given.get("lora", 0)) != "0":  # a value that is not a number is refused later
        guesses["lr"] = _LORA_LR
    if "val_file" not in given and Path(VAL_FILE).is_file():
        guesses["val_file"] = VAL_FILE
    return guesses
