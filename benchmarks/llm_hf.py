"""Hugging Face cases of `llm.py`: a plain eager loop over its model, and its Trainer with defaults.

    python benchmarks/llm_hf.py loop|trainer WORK --steps 40 [--batch 16] [--seed 42]

Both read the recipe's rows in the recipe's order, from its token cache. Weights are float32, and autocast
computes in bfloat16. The program writes one JSON object with step times, losses and peak memory to standard
output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from llm_work import LENGTH


def read_rows(work: Path, kind: str, length: int) -> Any:
    """Return the recipe's rows."""
    from transformers import AutoTokenizer

    from windlass.recipes.llm.llm_trainer import make_rows

    tokenizer = AutoTokenizer.from_pretrained(work / "model", local_files_only=True)
    return make_rows(
        str(work / f"{kind}.jsonl"),
        tokenizer,
        cache=work / "tokens",
        length=length,
        is_packed=True,
        vocab_size=len(tokenizer),
    )


def load_model(work: Path) -> Any:
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32)
    return model.to(device).train()


def loop(rows: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Train with a plain loop, on the recipe's order of rows."""
    from windlass.train.data.loader import Loader
    from windlass.train.trainer.optimizers import group_by_decay, make_schedule

    model = load_model(given.work)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(
        group_by_decay(model, 0.01), lr=given.lr, fused=device.type == "cuda"
    )
    schedule = make_schedule(
        optimizer, "cosine", warmup=10, total=given.schedule_steps or given.steps
    )
    loader = Loader(
        rows,
        batch=given.batch,
        micro_batch=given.micro_batch,
        seed=given.seed,
        drop_last=False,
        rank=0,
        world_size=1,
    )
    times, losses = [time.perf_counter()], []
    for step in loader.steps(stop=given.steps):
        total = torch.zeros((), device=device)
        valid = sum(int((part.data["labels"][:, 1:] != -100).sum()) for part in step.micro_batches)
        for part in step.micro_batches:
            tokens, labels = (part.data[key].to(device) for key in ("input_ids", "labels"))
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(
                    input_ids=tokens, labels=labels, use_cache=False, num_items_in_batch=valid
                ).loss
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total.item())
        times.append(time.perf_counter())
    return {"losses": losses, "times": times}


def trainer(rows: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Train with Hugging Face's Trainer, with its defaults except for precision and sizes."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    times = [time.perf_counter()]

    class Clock(TrainerCallback):
        def on_step_end(self, *_args: Any, **_keywords: Any) -> None:
            torch.cuda.synchronize() if torch.cuda.is_available() else None
            times.append(time.perf_counter())

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, number: int) -> dict[str, Any]:
            row = rows[number]
            return {"input_ids": row["input_ids"], "labels": row["labels"]}

    arguments = TrainingArguments(
        output_dir=str(given.work / "hf-trainer"),
        bf16=torch.cuda.is_available(),
        per_device_train_batch_size=given.micro_batch,
        gradient_accumulation_steps=given.batch // given.micro_batch,
        max_steps=given.steps,
        learning_rate=given.lr,
        save_strategy="no",
        report_to=[],
        logging_steps=10,
        disable_tqdm=True,
    )
    hf_trainer = Trainer(
        model=load_model(given.work), args=arguments, train_dataset=Rows(), callbacks=[Clock()]
    )
    hf_trainer.train()
    losses = [line["loss"] for line in hf_trainer.state.log_history if "loss" in line]
    return {"losses": [float(loss) for loss in losses], "times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("loop", "trainer"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--kind", default="long")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--schedule-steps", type=int, help="steps of the learning rate schedule (default: --steps)"
    )
    given = parser.parse_args()
    rows = read_rows(given.work, given.kind, given.length)
    seen = {"loop": loop, "trainer": trainer}[given.side](rows, given)
    if torch.cuda.is_available():
        seen["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    seen["tokens"] = round(given.batch * given.length * rows.report.utilization)
    sys.stdout.write("\n" + json.dumps(seen) + "\n")


if __name__ == "__main__":
    main()
