r"""Fine-tune a causal language model with Hugging Face's weights, on one process or on many.

    windlass run -m windlass.recipes.train_framework --gpus 8 -- --model meta-llama/Llama-3.2-1B
    torchrun --nproc-per-node 8 -m windlass.recipes.train_framework --model-local-dir /models/NAME \
        --tokenizer-local-dir /models/NAME --local-files-only

Reads /data/train.jsonl and /data/val.jsonl. Rows have `text`, or `messages`, of which only the assistant's
part is trained. Writes /out/<run>: checkpoints, metrics.jsonl, export/final and export/best for transformers.
Resumes where it stopped. Prints [MODEL] [DATA] [DDP] [TRAIN] [VALID] [EPOCH] [DONE] [EXPORT].
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.recipes.llm.llm_options import SETTLED, LlmOptions, read_llm_options
from windlass.recipes.llm.model_files import check_files, download, find_token, go_offline
from windlass.recipes.recipe_flags import (
    check_writable,
    end_with_help,
    exit_on_error,
    explain_unwritten,
    import_or_explain,
)

if TYPE_CHECKING:
    from windlass.train.parallel.context import Context


@exit_on_error
def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    end_with_help(words, __doc__, LlmOptions, hidden=SETTLED)
    options = read_llm_options(words, os.environ)
    check_files(options)  # before anything that takes seconds to import
    if options.local_files_only:
        go_offline(os.environ)
    token = find_token(os.environ)
    for library in ("torch", "transformers", "safetensors"):
        import_or_explain(library, "windlass[llm]")
    fine_tune(options, token=token)


def fine_tune(options: LlmOptions, *, token: str = "") -> None:
    """Train with the options, then export and copy the result."""
    import torch.distributed as dist

    from windlass.recipes.llm.folder_sync import open_store
    from windlass.recipes.llm.llm_trainer import LlmTrainer, explain_out_of_memory, settle_options
    from windlass.train.parallel.context import get_context

    if options.sync_to:
        open_store(options.sync_to)  # an invalid URL fails here, not after days of training
    context = get_context(device=options.device)
    if token and not options.local_files_only:
        _say(context, "MODEL", f"token of the hub from {token}")
    folder, tokenizer = download(options, lambda text: _say(context, "MODEL", text))
    say = functools.partial(_say, context)
    options = settle_options(options, context, folder=folder, say=say)
    trainer = LlmTrainer(options, folder=folder, tokenizer=tokenizer, say=say)
    check_writable(trainer.out / options.run)
    with explain_out_of_memory(options):
        result = trainer.fit()
    if options.export:
        with explain_unwritten(f"{trainer.out / options.run}/export"):
            trainer.export(result)
    target = options.out if options.is_out_url else options.sync_to
    if target:
        _sync(context, trainer.out / options.run, target)
    if dist.is_initialized():
        dist.destroy_process_group()


def _sync(context: Context, folder: Path, url: str) -> None:
    """Copy the run's files node by node, so that a shared folder is copied only once."""
    from windlass.recipes.llm.folder_sync import sync_folder

    for node in range(context.num_nodes):
        if context.node == node and context.local_rank == 0:
            with explain_unwritten(url):
                num_files = sync_folder(folder, url)
            _say(context, "SYNC", f"{num_files} files to {url}")
        context.barrier()


def _say(context: Any, tag: str, text: str) -> None:
    if context.is_main:
        sys.stdout.write(f"[{tag}] {text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
