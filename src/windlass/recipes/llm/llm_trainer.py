"""Trainer of `train_framework`: a TorchTrainer that counts tokens, adds perplexity, and exports at the end.

`model_build` builds the model. Its models take rows of tokens, shifted labels and document offsets.
`make_rows` tokenizes JSONL once and packs the tokens into rows. `collate_rows` joins rows into a batch on the
CPU, where counting documents does not wait for the GPU. This module reads no flags.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.errors import EngineError, SpecError
from windlass.recipes.llm.fp8 import check_fp8
from windlass.recipes.llm.gpu_memory import choose_rows, fit_to_memory, suggest_smaller
from windlass.recipes.llm.llama import Llama, pad_offsets
from windlass.recipes.llm.llama_config import read_llama_config
from windlass.recipes.llm.llm_options import LlmOptions
from windlass.recipes.llm.model_build import (
    build_model,
    check_causal,
    check_packing,
    check_positions,
    explain_difference,
)
from windlass.recipes.llm.model_export import export_model, remove_export
from windlass.recipes.llm.model_files import fingerprint_weights, read_hf_config, summarize_error
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.train.data.token_cache import cache_tokens
from windlass.train.data.token_packing import IGNORED, PackedTokens, make_cu_seqlens
from windlass.train.parallel.context import Context
from windlass.train.parallel.shape import read_shape
from windlass.train.trainer.torch_trainer import TorchTrainer
from windlass.train.trainer.trainer_save import TrainResult

Say = Callable[[str, str], None]


def make_rows(
    file: str, tokenizer: Any, *, cache: Path, length: int, is_packed: bool, vocab_size: int
) -> PackedTokens:
    """Return the rows of a JSONL file, or of all JSONL files in a folder."""
    shards = cache_tokens(file, tokenizer, cache=cache, vocab_size=max(vocab_size, len(tokenizer)))
    padding = tokenizer.pad_token_id
    padding = tokenizer.eos_token_id if padding is None else padding
    return PackedTokens(shards, length, pad_token=padding or 0, is_packed=is_packed)


def make_collate(*, is_packed: bool) -> Any:
    """Return a function that joins rows into a batch."""
    return partial(collate_rows, is_packed=is_packed)


def collate_rows(rows: list[dict[str, Tensor]], *, is_packed: bool) -> dict[str, Tensor]:
    """Return tokens and labels (each token's next token), and for packed rows positions and offsets."""
    labels = torch.stack([row["labels"] for row in rows])
    batch = {
        "tokens": torch.stack([row["input_ids"] for row in rows]),
        "labels": torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED),
    }
    if not is_packed:  # padding comes last, so causal attention never reads it
        return batch
    starts = make_cu_seqlens(torch.stack([row["document_ids"] for row in rows]))
    if len(starts) == len(rows) + 1:  # one document per row, which has faster kernels
        return batch
    positions = torch.stack([row["position_ids"] for row in rows])
    return {**batch, "positions": positions, "offsets": pad_offsets(starts)}


def count_valid(batch: dict[str, Tensor]) -> Tensor:
    """Return how many tokens of a batch count in the loss."""
    return (batch["labels"] != IGNORED).sum()


class LlmTrainer(TorchTrainer):
    """Trainer that fine-tunes a causal language model."""

    options_type = LlmOptions
    options: LlmOptions

    def __init__(self, options: LlmOptions, *, folder: Path, tokenizer: Path, say: Say) -> None:
        settings = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
        super().__init__(
            settings, batch_weight=count_valid, collate=make_collate(is_packed=options.pack)
        )
        self.source, self.tokenizer_folder, self.say = folder, tokenizer, say
        self.vocab_size = 0

    def create_model_loss_optimizer(self) -> None:
        """Build the model with the folder's weights. It computes its own loss."""
        say = lambda text: self.say("MODEL", text)  # noqa: E731
        self.model = build_model(self.source, self.options, device=self.device, say=say)
        self.loss = None
        check_positions(
            self.model, read_hf_config(self.source), length=self.options.length, say=say
        )
        if isinstance(self.model, Llama):
            self.vocab_size = self.model.config.vocab_size
            flops = self.model.config.count_flops(self.options.length)
        else:
            self.vocab_size = self.model.hf.config.vocab_size
            flops = 6.0 * sum(p.numel() for p in self.model.parameters())
            check_causal(self.model, self.vocab_size)
            if self.options.pack:
                check_packing(self.model, self.vocab_size, length=self.options.length)
        self.options = dataclasses.replace(self.options, flops_per_token=flops)

    def create_dataloaders(self) -> None:
        """Create the dataloaders from the tokenized files, reusing cached tokens.

        Rows are packed if `pack` is set.
        """
        tokenizer = load_tokenizer(self.tokenizer_folder)
        if len(tokenizer) > self.vocab_size:
            raise SpecError(
                f"the tokenizer has {len(tokenizer)} tokens, but the model has {self.vocab_size}",
                hint="check that --tokenizer-local-dir and --model-local-dir belong to the same model",
            )
        self.train_dataset = self._make_rows(tokenizer, self.options.train_file)
        if self.options.val_file is None:
            self.say("DATA", "no --val-file: no validation, and no best checkpoint")
        else:
            self.validation_dataset = self._make_rows(tokenizer, self.options.val_file)
        super().create_dataloaders()
        # the meters count tokens without padding
        tokens = round(self.options.length * self.train_dataset.report.utilization)
        self.options = dataclasses.replace(self.options, tokens_per_sample=max(1, tokens))

    def _make_rows(self, tokenizer: Any, file: str) -> PackedTokens:
        options = self.options
        rows = make_rows(
            file,
            tokenizer,
            cache=Path(options.cache or self.out / "tokens"),
            length=options.length,
            is_packed=options.pack,
            vocab_size=self.vocab_size,
        )
        learned = rows.shards.num_learned
        note = "" if learned == rows.report.num_tokens else f", {learned} tokens learned"
        self.say("DATA", f"{file}: {rows.report}{note}")
        return rows

    @property
    def out(self) -> Path:
        """Output folder: <out>, or the job's own output folder if <out> is a URL."""
        if self.options.out is None or self.options.is_out_url:
            return self.context.out
        return Path(self.options.out)

    def train_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean loss over a micro-batch's tokens.

        Divides here instead of passing `scale`, which FSDP would round to bfloat16.
        """
        del batch_idx
        valid: Tensor = count_valid(batch).clamp(min=1)
        return self.model(**batch) / valid

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.train_step(batch, batch_idx)

    def identity(self) -> dict[str, str]:
        """Return what identifies this training run, such as the base model's fingerprint."""
        known = {**super().identity(), "the model": fingerprint_weights(self.source)}
        known["--lora"] = str(self.options.lora)
        if not self.options.lora:
            return known
        return {**known, "--lora-alpha": str(self.options.alpha)}

    def complete_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add perplexity to the metrics. The loss is a mean over all tokens of all ranks."""
        loss = metrics.get("loss", math.nan)
        return {**metrics, "perplexity": math.exp(loss) if loss < 700 else math.inf}

    def export(self, result: TrainResult) -> None:
        """Write the last weights, and the best ones, as folders that transformers loads."""
        model, run = self.laid_out.model, self.out / self.options.run
        final, best = run / "export" / "final", run / "export" / "best"
        self._write(model, final, step=result.step)
        if result.best_step is None:
            return
        if result.best_step != result.step and not self.options.saves:
            self.say("EXPORT", "no export/best: --checkpoint-every 0 keeps no best weights")
        elif result.best_step != result.step:
            checkpoints = Checkpoints(result.folder, is_async=False, context=self.context)
            try:
                checkpoints.load({"model": model}, step=result.best_step)
            except SpecError as error:  # damaged or missing: the final export still counts
                self.say("EXPORT", f"no export/best: {error.message}")
                return
            finally:
                checkpoints.close()
            self._write(model, best, step=result.best_step)
        elif self.context.is_main:
            _link(final, best)
            self.say("EXPORT", f"{best} is {final}")

    def _write(self, model: Any, folder: Path, *, step: int) -> None:
        is_narrow = self.options.precision != "fp32"
        export_model(
            model,
            folder,
            source=self.source,
            tokenizer=self.tokenizer_folder,
            context=self.context,
            dtype=torch.bfloat16 if is_narrow else torch.float32,
        )
        self.say("EXPORT", f"{folder} step={step}")


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"transformers cannot read the tokenizer in {folder}: {summarize_error(error)}",
            hint="download its files again, or pass another folder with --tokenizer-local-dir",
        ) from error


def settle_options(options: LlmOptions, context: Context, *, folder: Path, say: Say) -> LlmOptions:
    """Return the options with all choices made that depend on the machine and the model's size."""
    is_gpu = context.device.type == "cuda"
    precision = options.precision
    if precision == "fp8":
        check_fp8(context.device)
    if precision == "auto":
        precision = "bf16" if is_gpu else "fp32"
    shape = read_shape(
        options.strategy, world_size=context.world_size, local_world_size=context.local_world_size
    )
    settled = dataclasses.replace(
        options,
        precision="bf16" if precision == "fp8" else precision,
        fp8=precision == "fp8",
        compile=options.compile or (is_gpu and not options.eager),
        batch=options.samples_per_step,
        tokens_per_step=None,
    )
    config = None
    if is_gpu and not explain_difference(
        folder, options
    ):  # memory is only estimated for the built-in Llama
        config = read_llama_config(read_hf_config(folder))
    settled = dataclasses.replace(settled, micro_batch=choose_rows(settled, shape, config=config))
    if config is None:
        return settled
    memory_bytes = torch.cuda.get_device_properties(context.device).total_memory
    # all ranks use the same value, because ranks that share a model compute in step
    memory_bytes = context.broadcast(memory_bytes)
    return fit_to_memory(
        *(settled, shape, config),
        memory_bytes=memory_bytes,
        rows_given=bool(options.micro_batch),
        say=functools.partial(say, "MODEL"),
    )


@contextlib.contextmanager
def explain_out_of_memory(options: LlmOptions) -> Iterator[None]:
    """Raise EngineError with the GPU's numbers and options that need less memory if a GPU runs out of it."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # torch reports the failed allocation, then the total and free memory, then much more
        numbers = ". ".join(
            re.findall(r"Tried to allocate .+?B\b|GPU \d+ has .+? is free", str(error))
        )
        raise EngineError(
            f"the GPU ran out of memory{': ' if numbers else ''}{numbers}",
            hint=f"options that use less memory: {suggest_smaller(options)}",
        ) from error


def _link(target: Path, link: Path) -> None:
    """Create a relative link, or a copy if the file system has no links."""
    import shutil

    remove_export(link)
    try:
        link.symlink_to(os.path.relpath(target, link.parent))
    except OSError:
        shutil.copytree(target, link)
