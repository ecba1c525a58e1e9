"""Fine-tuning, from data to a folder that transformers loads: complete, stopped, and with adapters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from recipes.tiny_llama import TINY, write_model

from windlass.errors import SpecError
from windlass.recipes.llm.folder_sync import sync_folder
from windlass.recipes.llm.llama import Llama
from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.llm.llm_trainer import collate_rows, count_valid
from windlass.recipes.llm.model_build import HfCausalLM, add_adapters, check_packing
from windlass.recipes.llm.model_export import find_adapters, merge_adapters
from windlass.recipes.train_framework import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def write_data(folder):
    def row(i):
        if i % 3:
            return {"text": " ".join(f"{k} and one is {k + 1}." for k in range(1 + i % 5))}
        turns = [("user", f"one and {i}?"), ("assistant", str(i + 1))]
        return {"messages": [{"role": role, "content": text} for role, text in turns]}

    for name, count in (("train", 48), ("val", 9)):
        lines = [json.dumps(row(i)) + "\n" for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


FLAGS = [
    *("--model-local-dir", "m", "--local-files-only", "--train-file", "train.jsonl"),
    *("--val-file", "val.jsonl", "--length", "128", "--batch", "4", "--lr", "3e-3", "--out", "o"),
    *("--log-every", "2", "--no-async-checkpoints"),
]


def read_losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = [line for line in map(json.loads, lines) if "loss" in line.get("metrics", {})]
    return [(line["step"], line["metrics"]["loss"]) for line in metrics]


def logits_of(folder, tokens):
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits


def test_rows_become_batches_with_shifted_labels_and_offsets():
    row = {
        "input_ids": torch.arange(6),
        "labels": torch.tensor([-100, 1, 2, -100, 4, 5]),
        "position_ids": torch.tensor([0, 1, 2, 0, 1, 2]),
        "document_ids": torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32),
    }
    batch = collate_rows([row, row], is_packed=True)
    assert batch["labels"][0].tolist() == [1, 2, -100, 4, 5, -100]
    assert batch["offsets"][:6].tolist() == [0, 3, 6, 9, 12, 12]
    assert int(count_valid(batch)) == 8
    assert set(collate_rows([row], is_packed=False)) == {"tokens", "labels"}
    alone = {**row, "document_ids": torch.zeros(6, dtype=torch.int32)}
    assert "offsets" not in collate_rows([alone], is_packed=True)


def test_a_model_that_cannot_take_packed_rows_is_refused():
    from transformers import BloomConfig, BloomForCausalLM, MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    mistral = HfCausalLM(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=64)))
    check_packing(mistral.eval(), 300, length=64)
    with pytest.raises(SpecError, match="attends to 64 tokens at a time") as caught:
        check_packing(mistral, 300, length=65)
    assert "--no-pack" in caught.value.hint
    bloom = BloomForCausalLM(BloomConfig(vocab_size=300, hidden_size=32, n_layer=1, n_head=4))
    with pytest.raises(SpecError, match="does not separate the documents of one row"):
        check_packing(HfCausalLM(bloom).eval(), 300, length=64)


def test_layers_that_cannot_have_adapters_are_named():
    pytest.importorskip("peft")
    words = ["--model", "m", "--lora", "4", "--lora-targets"]
    for wrong in ("q_proj,lm_head", "nothing", "other.q_proj", "embed_tokens"):
        with pytest.raises(SpecError, match="--lora-targets") as caught:
            add_adapters(Llama(TINY), read_llm_options([*words, wrong], {}), say=print)
        assert "q_proj, k_proj" in caught.value.hint
    model = Llama(TINY)
    add_adapters(model, read_llm_options([*words, "0.self_attn.q_proj"], {}), say=print)
    assert len(find_adapters(dict(model.named_parameters()))) == 2


def test_adapters_are_merged_as_peft_merges_them():
    peft = pytest.importorskip("peft")
    model = Llama(TINY)
    model.init_weights()
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"]), model
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    merged = Llama(TINY)
    merged.load_state_dict(dict(merge_adapters(model.state_dict(), scaling=2.0)))
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(merged(tokens), model(tokens), atol=1e-5, rtol=1e-5)
    names = sorted(find_adapters(model.state_dict()))
    assert names[0] == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert len(names) == 2 * TINY.num_layers


def test_run_is_copied_once_and_with_its_links(tmp_path):
    run = tmp_path / "scratch.tmp/run"  # only unfinished files of the run itself are skipped
    (run / "step-1").mkdir(parents=True)
    (run / "step-1/a.bin").write_bytes(b"12345")
    (run / "step-2.tmp-0-ab").mkdir()
    (run / "step-2.tmp-0-ab/a.bin").write_bytes(b"1")
    (run / "best").symlink_to("step-1")
    assert sync_folder(run, str(tmp_path / "there")) == 2
    assert (tmp_path / "there/run/step-1/a.bin").read_bytes() == b"12345"
    assert (tmp_path / "there/run/best").read_text() == "step-1"
    # copy only the link, because it may have moved
    assert sync_folder(run, str(tmp_path / "there")) == 1


def test_changed_file_of_equal_length_is_copied_again(tmp_path):
    run = tmp_path / "o/run"
    run.mkdir(parents=True)
    for content in (b"old weights", b"new weights"):
        (run / "model.safetensors").write_bytes(content)
        assert sync_folder(run, str(tmp_path / "there")) == 1
        assert (tmp_path / "there/run/model.safetensors").read_bytes() == content


def test_it_trains_exports_and_resumes(tmp_path, capsys):
    write_model(tmp_path / "m", is_tied=True)
    write_data(tmp_path)
    flags = [*FLAGS, "--epochs", "2", "--scheduler", "constant", "--warmup", "0"]
    main([*flags, "--run-id", "whole", "--sync-to", str(tmp_path / "there")])
    lines = capsys.readouterr().out
    assert "[MODEL] built-in Llama" in lines
    assert re.search(r"\[DATA\] train.jsonl: 48 documents, .* 0 tokens dropped", lines)
    assert len(re.findall(r"\[EPOCH\] .*val_perplexity=", lines)) == 2
    run = tmp_path / "o/whole"
    assert os.readlink(run / "best").startswith("step-")
    assert (run / "epoch-2/rank-0").is_dir()
    assert (tmp_path / "there/whole/export/final/model.safetensors").is_file()

    main([*flags, "--run-id", "halves", "--steps", "4"])
    main([*flags, "--run-id", "halves"])
    losses = dict(read_losses(run))
    assert len(losses) > 4
    assert losses == dict(read_losses(tmp_path / "o/halves"))

    from windlass.recipes.llm.model_build import load_llama

    tokens = torch.arange(40)[None] % 250
    ours = load_llama(run / "export/final")
    with torch.no_grad():
        logits = ours(tokens)
    torch.testing.assert_close(
        logits_of(run / "export/final", tokens), logits, atol=1e-5, rtol=1e-5
    )
    assert not torch.allclose(logits_of(tmp_path / "m", tokens), logits, atol=1e-2)


def test_copy_follows_folder_and_link_replacements(tmp_path):
    best, there = tmp_path / "o/run/export/best", tmp_path / "there"
    best.mkdir(parents=True)
    (best / "a.bin").write_bytes(b"1")
    sync_folder(tmp_path / "o/run", str(there))
    (best / "a.bin").rename(best.with_name("a.bin"))
    best.rmdir()
    best.symlink_to("final")
    sync_folder(tmp_path / "o/run", str(there))
    assert (there / "run/export/best").read_text() == "final"
    best.unlink()
    best.mkdir()
    (best / "a.bin").write_bytes(b"2")
    sync_folder(tmp_path / "o/run", str(there))
    assert (there / "run/export/best/a.bin").read_bytes() == b"2"


def test_unusable_url_is_reported_before_the_training(tmp_path, capsys):
    write_model(tmp_path / "m")
    write_data(tmp_path)
    with pytest.raises(SystemExit):
        main([*FLAGS, "--steps", "1", "--sync-to", "nowhere://bucket"])
    assert "--sync-to nowhere://bucket" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


@pytest.mark.long
def test_best_and_last_weights_are_exported(tmp_path, capsys):
    write_model(tmp_path / "m")
    write_data(tmp_path)
    wild = ["--lr", "1", "--warmup", "0", "--validate-every", "1", "--steps", "4", "--keep", "1"]
    main([*FLAGS, *wild])  # the loss gets worse from the first step on
    assert re.search(r"\[DONE\] .*best_step=[12] ", capsys.readouterr().out)
    tokens = torch.arange(30)[None]
    run = tmp_path / "o/run"
    best, last = (logits_of(run / "export" / name, tokens) for name in ("best", "final"))
    assert not torch.allclose(best, last, atol=1e-2)


@pytest.mark.long
def test_fsdp_in_bfloat16_computes_the_loss_of_ddp(tmp_path):
    """A loss factor that is rounded to bfloat16 would be wrong by up to 4e-3."""
    write_model(tmp_path / "m")
    write_data(tmp_path)
    flags = [*FLAGS, "--precision", "bf16", "--steps", "6", "--lr", "1e-9", "--no-export"]
    for strategy in ("ddp", "fsdp"):
        words = ["--strategy", strategy, "--run-id", strategy, "--log-every", "1"]
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        recipe = ["-m", "windlass.recipes.train_framework", *flags, *words]
        ran = subprocess.run(
            [sys.executable, "-m", *command, *recipe], capture_output=True, text=True, timeout=170
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    ddp, fsdp = (dict(read_losses(tmp_path / "o" / name)) for name in ("ddp", "fsdp"))
    assert len(ddp) == 6
    assert fsdp == pytest.approx(ddp, rel=3e-4)


@pytest.mark.long
def test_without_checkpoints_only_the_best_export_is_missing(tmp_path, capsys):
    write_model(tmp_path / "m")
    write_data(tmp_path)
    wild = ["--epochs", "2", "--lr", "1e3", "--scheduler", "constant", "--warmup", "0"]
    main([*FLAGS, *wild, "--checkpoint-every", "0", "--sync-to", str(tmp_path / "there")])
    lines = capsys.readouterr().out
    assert "[EXPORT] no export/best: --checkpoint-every 0 keeps no best weights" in lines
    assert (tmp_path / "there/run/export/final/model.safetensors").is_file()


@pytest.mark.long
@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied head"])
def test_adapters_are_saved_separately_and_exported_merged(tmp_path, is_tied):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    write_model(tmp_path / "m", is_tied=is_tied)
    write_data(tmp_path)
    main([*FLAGS, "--steps", "4", "--lora", "4", "--checkpoint-every", "2"])
    files = [path for path in (tmp_path / "o/run/step-4").rglob("*") if path.is_file()]
    saved = b"".join(path.read_bytes() for path in files)
    assert b"lora_A" in saved
    assert not any(word in saved for word in (b"lm_head", b"embed", b"base_layer"))
    folder, tokens = tmp_path / "o/run/export/final", torch.arange(30)[None]
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    before, merged = logits_of(tmp_path / "m", tokens), logits_of(folder, tokens)
    assert not torch.allclose(merged, before, atol=1e-4)
    with torch.no_grad():
        adapted = peft.PeftModel.from_pretrained(base, folder / "adapter")(tokens).logits
    torch.testing.assert_close(adapted, merged, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_hugging_face_model_trains_equally(tmp_path, capsys):
    write_model(tmp_path / "m")
    write_data(tmp_path)
    flags = [*FLAGS, "--steps", "4", "--no-export", "--val-file", "none"]
    main([*flags, "--run-id", "ours"])
    main([*flags, "--run-id", "theirs", "--hf-model"])
    assert "Hugging Face's own model (--hf-model)" in capsys.readouterr().out
    ours, theirs = read_losses(tmp_path / "o/ours"), read_losses(tmp_path / "o/theirs")
    assert [step for step, _ in ours] == [2, 4]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.long
def test_another_architecture_is_trained_with_adapters(tmp_path, capsys):
    pytest.importorskip("peft")
    from transformers import GPT2Config, GPT2LMHeadModel

    write_model(tmp_path / "m")  # provides the tokenizer
    write_data(tmp_path)
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(**tokens, vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    names = ["--model-local-dir", "gpt", "--tokenizer-local-dir", "m", "--run-id", "gpt"]
    main([*FLAGS, *names, "--steps", "4", "--lora", "4"])
    assert "GPT2LMHeadModel is not Llama-shaped" in capsys.readouterr().out
    folder = tmp_path / "o/gpt/export/final"
    tokens = torch.arange(30)[None]
    merged, before = logits_of(folder, tokens), logits_of(tmp_path / "gpt", tokens)
    assert not torch.allclose(merged, before, atol=1e-4)
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt", dtype=torch.float32)
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(base, folder / "adapter")(tokens).logits
    torch.testing.assert_close(adapted, merged, atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_killed_ranks_resume_to_the_same_result(tmp_path, home):
    """One of two ranks of the local engine is killed after its third step, and the job restarts both."""
    write_model(tmp_path / "m")
    write_data(tmp_path)
    (tmp_path / "killed.py").write_text(KILLED)
    flags = [*FLAGS, "--epochs", "2", "--checkpoint-every", "2", "--strategy", "fsdp"]
    for run in ("whole", "killed"):
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "windlass.cli.main", "run", "--procs", "2"),
                *("--restarts", "2", "killed.py", "--", *flags, "--run-id", run),
                *("--log-every", "1"),
            ],
            capture_output=True,
            text=True,
            timeout=175,
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    whole, killed = (dict(read_losses(tmp_path / "o" / run)) for run in ("whole", "killed"))
    assert (tmp_path / "was_killed").exists()
    assert len(whole) > 8
    assert killed == whole  # equal bit for bit, even for repeated steps
    tokens = torch.arange(30)[None]
    exported = [
        logits_of(tmp_path / "o" / run / "export/best", tokens) for run in ("whole", "killed")
    ]
    assert torch.equal(*exported)


KILLED = """
import os, signal, sys
from pathlib import Path
from windlass.recipes import train_framework
from windlass.recipes.llm import llm_trainer

class Killed(llm_trainer.LlmTrainer):
    num_steps = 0

    def train_step(self, batch, batch_idx):
        self.num_steps += 1
        marker = Path("was_killed")
        is_due = "killed" in sys.argv and self.num_steps == 4 and self.context.rank == 1
        if is_due and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_step(batch, batch_idx)

llm_trainer.LlmTrainer = Killed
if __name__ == "__main__":
    train_framework.main()
"""
