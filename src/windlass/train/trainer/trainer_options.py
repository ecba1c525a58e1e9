"""Settings of a training run with their defaults, read from dicts, YAML or JSON files, or flags.

Plain data, without torch. `TorchTrainer` accepts each setting as a keyword. Users add their own settings as
fields of a subclass, named by `TorchTrainer.options_type`. An unknown setting is an error that names the
closest known one. A value of the wrong type is an error too. No setting is ignored silently.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from windlass import names
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.train.trainer.itwinai_names import PER_RANK, SETTINGS, translate

_FROM_1_UP = (
    *(
        "epochs",
        "steps",
        "batch",
        "batch_size",
        "tokens_per_step",
        "tokens_per_sample",
        "micro_batch",
    ),
    *("early_stop", "validate_every"),
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """The settings of a `TorchTrainer`."""

    epochs: int | None = None  # times to see all samples (default: 1 without steps)
    steps: int | None = None  # total number of optimizer steps
    batch: int = 32  # samples of one optimizer step, over ALL ranks
    batch_size: int | None = None  # samples per rank, instead of batch (itwinai's name)
    tokens_per_step: int | None = None  # tokens per step, instead of batch (equal-length samples)
    tokens_per_sample: int | None = None  # tokens in each sample, for tokens_per_step and rates
    micro_batch: int | None = None  # samples per rank and pass; gradients accumulate
    loss: str | None = None  # cross_entropy, mse ... (default: the model's own)
    optimizer: str = "adamw"  # adamw, adam, sgd or adamw8bit
    scheduler: str = "constant"  # learning-rate schedule: constant, linear, cosine or wsd
    lr: float = 1e-3  # learning rate after the warm-up
    weight_decay: float = 0.0  # applied to matrices, not to biases and norms
    warmup: int = 0  # steps until the full learning rate
    clip: float | None = 1.0  # maximum norm of all gradients
    strategy: str = "ddp"  # ddp, fsdp, hsdp or deepspeed, or sizes such as fsdp=8,dp=2
    zero_stage: int = 2  # ZeRO stage of strategy "deepspeed"
    precision: str = "fp32"  # fp32, bf16 or fp16
    blocks: tuple[str, ...] = ()  # class names of layers that fsdp shards one by one
    checkpoint_activations: bool = False  # save memory by recomputing in the backward pass
    compile: bool = False  # compile each block with torch.compile
    device: str | None = None  # cpu, cuda or cuda:1 (default: the rank's GPU, if any)
    shuffle: bool = True  # use a different order each epoch, derived from the seed
    drop_last: bool = False  # skip an epoch's last step if it is not full
    num_workers: int = 0  # processes that read samples, or 0 for a thread
    validate_every: int | str | None = "epoch"  # "epoch", or a number of steps
    early_stop: int | None = None  # stop after this many validations without improvement
    best: str = "min"  # min or max: the lowest or the highest metric is best
    best_metric: str = "loss"  # validation metric that decides which checkpoint is best
    checkpoint_every: int | str | None = None  # steps or a time like "30s"; 0 disables checkpoints
    checkpoint_epochs: bool = True  # also save at the end of each epoch
    keep: int = 2  # number of newest checkpoints to keep besides the best
    async_checkpoints: bool = True  # write checkpoints in a separate process
    resume: bool = True  # resume from <out>/<run>; if off, move the old run aside
    trust_checkpoint: bool = False  # load another user's run, and objects that need pickle
    seed: int = 42  # seed of the weights, the sample order and all random numbers
    out: str | None = None  # output folder (default: the job's)
    run: str = "run"  # name of the run; its files are under <out>/<run>
    trackers: tuple[str, ...] = ()  # trackers in addition to metrics.jsonl
    log_every: int = 10  # steps between log lines
    flops_per_token: float = 0.0  # forward and backward operations per token, for MFU
    flops_per_sample: float = 0.0  # forward and backward operations per sample, for MFU

    def __post_init__(self) -> None:
        for name in _FROM_1_UP:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise SpecError(
                    f"{name} must be at least 1, not {value}",
                    hint="use a larger number, or remove the setting",
                )
        if self.batch_size is not None and self.tokens_per_step is not None:
            raise SpecError(
                "batch_size and tokens_per_step are both given", hint="pass only one of them"
            )
        if isinstance(self.checkpoint_every, int) and self.checkpoint_every < 0:
            raise SpecError(
                f"checkpoint_every must be at least 0, not {self.checkpoint_every}",
                hint="use 0 to save no checkpoints",
            )
        if self.log_every < 1 or self.keep < 1:
            raise SpecError(
                f"log_every and keep must be at least 1, not {self.log_every} and {self.keep}",
                hint="use larger numbers",
            )
        if not 0 <= self.lr < math.inf:
            raise SpecError(
                f"lr must be a finite number of at least 0, not {self.lr:g}",
                hint="use a rate such as 3e-4",
            )
        if not 0 <= self.weight_decay < math.inf:
            raise SpecError(
                f"weight_decay must be a finite number of at least 0, not {self.weight_decay:g}",
                hint="use 0 to disable it; 0.01 is common",
            )
        if self.clip is not None and not self.clip >= 0:
            raise SpecError(
                f"clip must be at least 0, not {self.clip:g}",
                hint="use a norm such as 1.0, or none to disable clipping",
            )
        if self.warmup < 0:
            raise SpecError(
                f"warmup must be at least 0, not {self.warmup}",
                hint="use 0 to start with the full learning rate",
            )
        parts = PurePosixPath(self.run.strip()).parts
        if not parts or ".." in parts or parts[0].startswith("/"):
            raise SpecError(
                f"run must name a folder within the output folder, not {self.run!r}",
                hint="use a name such as lr-3e-4",
            )
        if self.best not in ("min", "max"):
            raise SpecError(
                f'best must be "min" or "max", not {self.best!r}',
                hint="use best_metric to choose the metric",
            )
        if isinstance(self.validate_every, str) and self.validate_every != "epoch":
            raise SpecError(
                f"invalid validate_every {self.validate_every!r}",
                hint='use a number of steps, or "epoch"',
            )
        if isinstance(self.checkpoint_every, str):
            read_seconds(self.checkpoint_every)

    def __getattr__(self, name: str) -> Any:
        """Return a setting under itwinai's name."""
        if name in SETTINGS:
            return getattr(self, SETTINGS[name])
        raise AttributeError(f"{type(self).__name__} has no setting {name!r}")

    @property
    def samples_per_step(self) -> int:
        """The global batch, from samples or from tokens."""
        if self.tokens_per_step is None:
            return self.batch
        if not self.tokens_per_sample:
            raise SpecError(
                "tokens_per_step needs the number of tokens per sample",
                hint="pass tokens_per_sample too (packed samples have equal length), or use batch instead",
            )
        return max(1, self.tokens_per_step // self.tokens_per_sample)

    @property
    def saves(self) -> bool:
        """True if checkpoints are saved at all."""
        return self.checkpoint_every != 0

    @property
    def checkpoint_every_s(self) -> float | None:
        return (
            read_seconds(self.checkpoint_every) if isinstance(self.checkpoint_every, str) else None
        )


def read_seconds(text: str) -> float:
    """Return the seconds in "30s", "5m", "1h" or "250ms"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if not match:
        raise SpecError(
            f"invalid duration {text!r:.40}", hint='use a form such as "30s", "5m" or "1h"'
        )
    return float(match[1]) * _UNITS_S[match[2]]


Options = TypeVar("Options", bound=TrainerOptions)
Config = Mapping[str, Any] | str | os.PathLike[str] | Sequence[str]

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_FOREIGN_NAMES = {  # names in Hugging Face's Trainer and itwinai's optimizers
    "optimizer_name": "use `optimizer` instead",
    "learning_rate": "use `lr` instead",
    "num_train_epochs": "use `epochs` instead",
    "max_steps": "use `steps` instead",
    "per_device_train_batch_size": "batch counts the samples of one step over ALL ranks; "
    "micro_batch counts those of one rank and pass",
    "gradient_accumulation_steps": "computed from batch, micro_batch and the number of ranks",
    "lr_scheduler_type": "use `scheduler` instead",
    "warmup_steps": "use `warmup` instead",
    "max_grad_norm": "use `clip` instead",
    "logging_steps": "use `log_every` instead",
    "eval_steps": "use `validate_every` instead",
    "save_steps": "use `checkpoint_every` instead",
    "save_total_limit": "use `keep` instead",
    "report_to": "use `trackers` instead",
}


def read_options(
    options_type: type[Options], defaults: Mapping[str, Any], config: Config | None
) -> Options:
    """Return options from keywords and a config, which takes precedence. Exits after `--help`."""
    values = _check_keys(options_type, defaults)
    if is_help_requested(config):
        if os.environ.get(names.RANK, "0") == "0":
            sys.stdout.write(describe_flags(options_type, values))
        raise SystemExit(0)
    given = read_config(options_type, config)
    if PER_RANK in given:
        values.pop("batch", None)
    if "batch" in given:
        values.pop(PER_RANK, None)
    values |= given
    if "batch" in values and values.get(PER_RANK) is not None:
        raise SpecError(
            "batch and batch_size are both given",
            hint="use batch for the samples of a step over all ranks, or batch_size for those of one rank",
        )
    hints = typing.get_type_hints(options_type)
    return options_type(**{key: _convert(key, value, hints[key]) for key, value in values.items()})


def is_help_requested(config: Config | None) -> bool:
    if not isinstance(config, Sequence) or isinstance(config, str):
        return False
    return "-h" in config or "--help" in config


def describe_flags(
    options_type: type[TrainerOptions],
    defaults: Mapping[str, Any],
    *,
    hidden: Collection[str] = (),
) -> str:
    """Return all settings as flags, one per line, with their defaults and meanings."""
    fields = [one for one in dataclasses.fields(options_type) if one.name not in hidden]
    comments = _read_comments(options_type)
    lines = []
    for field in sorted(fields, key=lambda field: field.name):
        default = _show(defaults.get(field.name, field.default))
        flag = f"  --{field.name.replace('_', '-')} {default}"
        lines.append(f"{flag:34}  {comments.get(field.name, '')}".rstrip() + "\n")
    return f"All flags with their defaults (--config FILE reads YAML or JSON):\n{''.join(lines)}"


def _read_comments(options_type: type[TrainerOptions]) -> dict[str, str]:
    """Return the source comments of the fields, or nothing if the source is not available."""
    comments: dict[str, str] = {}
    for kind in reversed(options_type.__mro__[:-1]):
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):
            continue
        comments |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", source, re.MULTILINE))
    return comments


def _show(default: Any) -> str:
    if isinstance(default, (list, tuple)):
        return ",".join(map(str, default)) or "none"
    return str(default).lower() if isinstance(default, bool | None) else str(default)


def read_config(options_type: type[TrainerOptions], config: Config | None) -> dict[str, Any]:
    """Return the settings from a dict, a file or flags. `--config FILE` among flags is read first."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return _check_keys(options_type, config)
    if isinstance(config, (str, os.PathLike)):
        return _check_keys(options_type, _read_file(Path(config)))
    if callable(dump := getattr(config, "model_dump", None)):  # a pydantic model from itwinai
        return _check_keys(options_type, dump(exclude_unset=True))
    if not isinstance(config, Sequence):
        raise SpecError(
            f"config cannot be a {type(config).__name__}",
            hint="pass a dict, a file or command-line flags",
        )
    flags = _read_flags(options_type, list(config))
    file = flags.pop("config", None)
    return {**read_config(options_type, file), **_check_keys(options_type, flags)}


def _check_keys(options_type: type[TrainerOptions], values: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(options_type)]
    own = {key: value for key, value in values.items() if key in known}
    others = {key: value for key, value in values.items() if key not in known}
    values = {**own, **_translate(others, own)}
    for key in values:
        if key not in known:
            raise SpecError(
                f"unknown trainer setting {key!r}",
                hint=_FOREIGN_NAMES.get(str(key)) or did_you_mean(str(key), known),
            )
    return dict(values)


def _translate(others: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings renamed from itwinai's names to Windlass's."""
    translated = translate(others)
    for key in others:
        if (name := SETTINGS.get(key)) in own:
            raise SpecError(f"{key} and {name} are the same setting", hint="pass only one of them")
    return translated


def _read_file(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not text")
        raise SpecError(
            f"cannot read the config {path}: {why}", hint="pass the path of a file"
        ) from error
    values = _read_json(path, text) if path.suffix == ".json" else _read_yaml(path, text)
    if not isinstance(values or {}, Mapping):
        raise SpecError(f"{path} has no settings", hint="write one `key: value` per line")
    return values or {}


def _read_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SpecError(f"{path} is not valid JSON: {error}", hint="fix that line") from error


def _read_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise SpecError(
            f"reading {path} needs PyYAML, which is not installed here",
            hint="run `pip install pyyaml`, or write the config as .json",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{path} is not valid YAML: {error}", hint="fix that line") from error


def _read_flags(options_type: type[TrainerOptions], words: list[str]) -> dict[str, Any]:
    """Parse `--key value` and `--key=value`, and for switches `--key` and `--no-key`."""
    hints = typing.get_type_hints(options_type)
    flags: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise SpecError(f"unexpected argument {word!r}", hint="use --key value")
        key, has_value, value = word[2:].partition("=")
        key = key.replace("-", "_")
        # torchrun consumes --run itself, even after the script's name, so --run-id works too
        key = "run" if key == "run_id" else key
        if has_value:
            flags[key] = value
        elif key.startswith("no_") and hints.get(key[3:]) is bool:
            flags[key[3:]] = False
        elif hints.get(key) is bool and (not words or words[0].lower() not in _WORDS):
            flags[key] = True
        elif words:
            flags[key] = words.pop(0)
        else:
            raise SpecError(f"{word} requires a value", hint=f"use {word} VALUE")
    return flags


def _convert(key: str, value: Any, hint: Any) -> Any:
    """Return the value as the setting's type, reading text as a number, a switch or None where it fits."""
    if hint is str and isinstance(value, str):
        return value  # keeps "none", which is a strategy
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    for kind in typing.get_args(hint) if is_union else (hint,):
        converted = _as_kind(value, kind)
        if converted is not NotImplemented:
            return converted
    name = hint.__name__ if isinstance(hint, type) else str(hint)
    raise SpecError(f"{key} must be {name}, not {value!r:.60}", hint=f"change {key}")


def _as_kind(value: Any, kind: Any) -> Any:
    if kind is type(None):
        is_none = value is None or (isinstance(value, str) and value.lower() in ("none", "null"))
        return None if is_none else NotImplemented
    if kind is bool:
        word = value.lower() if isinstance(value, str) else ""
        return value if isinstance(value, bool) else _WORDS.get(word, NotImplemented)
    if kind in (int, float) and not isinstance(value, bool):
        try:
            number = kind(value)
        except (OverflowError, TypeError, ValueError):
            return NotImplemented
        return number if isinstance(value, str) or number == value else NotImplemented
    if kind is str:
        is_word = isinstance(value, str) and value.lower() not in ("none", "null")
        return (
            value if is_word else str(value) if isinstance(value, os.PathLike) else NotImplemented
        )
    if typing.get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        is_list = isinstance(items, Sequence)
        return tuple(str(item).strip() for item in items if item) if is_list else NotImplemented
    return value if isinstance(kind, type) and isinstance(value, kind) else NotImplemented
