"""The settings of `train_framework`, and how they are read from flags or YAML. Pure, without torch.

Everything that `TorchTrainer` can be told is here as well, with defaults for language models. What depends
on the machine (precision, micro-batch, output folder) is decided in `llm_trainer`, when it is known.
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

SETTLED = {  # of a trainer's settings, those that follow from others here
    "fp8": "--precision fp8 computes the blocks in float8",
    "loss": "the model computes its own, over the tokens that are learned",
    "tokens_per_sample": "--length is how many tokens a row has",
    "flops_per_token": "it is computed from the model",
    "flops_per_sample": "it is computed from the model",
    "recompute_given": "--checkpoint-activations and --no-checkpoint-activations set it",
}
METRICS = ("loss", "perplexity")  # of validations
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
    """The settings of a fine-tuning."""

    model: str | None = None  # an id of the Hugging Face hub, or a folder
    model_local_dir: str | None = None  # a folder as Hugging Face has them
    tokenizer_local_dir: str | None = None  # the model's folder, unless given
    local_files_only: bool = False  # ask nobody, download nothing
    hf_model: bool = False  # Hugging Face's own model even where ours computes the same
    train_file: str = TRAIN_FILE  # JSONL with `text` or `messages`; a file or a folder
    val_file: str | None = None  # as train_file; /data/val.jsonl, where it is there
    cache: str | None = None  # for tokens; <out>/tokens
    length: int = 2048  # tokens of a row
    pack: bool = True  # several documents in a row
    lora: int = 0  # the rank of adapters; 0: all weights are trained
    lora_alpha: int | None = None  # the scale of adapters, times their rank; twice the rank
    lora_targets: tuple[str, ...] = ()  # names of layers; all linear ones but the head
    precision: str = "auto"  # bf16 on a GPU, fp32 on a CPU; fp8: blocks in float8
    fp8: bool = False  # set by precision
    recompute_given: bool = False  # set by checkpoint_activations, which else depends on the GPU
    eager: bool = False  # do not compile the blocks on a GPU
    export: bool = True  # the last and the best weights as folders that transformers loads
    sync_to: str | None = None  # a URL to which <out>/<run> is copied at the end
    epochs: int | None = None
    batch: int = 32  # rows of one optimizer step, over ALL ranks
    lr: float = 2e-5  # 2e-4 with adapters
    weight_decay: float = 0.01  # of matrices
    scheduler: str = "cosine"  # of the rate: constant, linear, cosine, wsd
    warmup: int = 10
    checkpoint_every: int | str | None = "10m"  # or steps; 0: no checkpoints
    run: str = "run"

    @property
    def alpha(self) -> int:
        """What adapters are multiplied by, times their rank."""
        return 2 * self.lora if self.lora_alpha is None else self.lora_alpha

    @property
    def is_out_url(self) -> bool:
        """Whether checkpoints go to an object store; other files are made in a folder first then."""
        return "://" in (self.out or "")

    @property
    def is_base_narrow(self) -> bool:
        """Whether weights below adapters are kept in bfloat16: where they are neither trained nor sharded."""
        return bool(self.lora) and self.precision == "bf16" and self.strategy == "ddp"

    @property
    def is_base_joined(self) -> bool:
        """Whether weights below adapters are kept as their matmuls read them: `linear_layers`."""
        return bool(self.lora) and not self.fp8 and self.strategy == "ddp"


def read_llm_options(words: Sequence[str], environ: Mapping[str, str]) -> LlmOptions:
    """The settings that a command line gives, itself or by `--config FILE`."""
    given = read_config(LlmOptions, rename_flags(words, _ALIASES))
    for name, instead in SETTLED.items():
        if name in given:
            raise SpecError(f"{name} is nothing to be set here", hint=instead)
    options = read_options(LlmOptions, _guess(given, environ), given)
    if options.precision not in PRECISIONS:
        raise SpecError(
            f"--precision {options.precision} is not known", hint=f"one of {', '.join(PRECISIONS)}"
        )
    if not (options.model or options.model_local_dir):
        raise SpecError(
            "no model was named",
            hint="--model ID of the Hugging Face hub, or --model-local-dir FOLDER",
        )
    if options.sync_to and options.is_out_url:
        raise SpecError(
            f"--out {options.out} is a URL already: nothing is left for --sync-to to copy",
            hint="leave out one of them",
        )
    if options.length < 2:
        raise SpecError(
            f"--length {options.length}: a row needs at least two tokens", hint="2048 is usual"
        )
    if options.best_metric not in METRICS:  # now, rather than after the first epoch
        raise SpecError(
            f"validations have no {options.best_metric}",
            hint=did_you_mean(options.best_metric, METRICS),
        )
    if options.lora < 0:
        raise SpecError(
            f"--lora {options.lora} is not a rank of adapters",
            hint="a number such as 8 or 16; 0 trains all weights",
        )
    if options.lora_targets and not options.lora:
        raise SpecError(
            f"--lora-targets {','.join(options.lora_targets)} without adapters: all weights would be trained",
            hint="--lora 16 puts adapters of that rank on them",
        )
    if options.lora_alpha is not None and (options.lora_alpha < 1 or not options.lora):
        raise SpecError(
            f"--lora-alpha {options.lora_alpha} multiplies adapters of --lora {options.lora}",
            hint="a number from 1 up, beside a --lora of 1 and more; twice the rank if it is left out",
        )
    return replace(
        options,
        tokens_per_sample=options.length,
        recompute_given="checkpoint_activations" in given,
    )


def _guess(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Defaults that depend on what was given, and on where this runs."""
    guesses = {**guess_out(environ), **guess_trackers(environ)}
    if str(given.get("lora", 0)) != "0":  # a word that is no number is refused later
        guesses["lr"] = _LORA_LR
    if "val_file" not in given and Path(VAL_FILE).is_file():
        guesses["val_file"] = VAL_FILE
    return guesses
