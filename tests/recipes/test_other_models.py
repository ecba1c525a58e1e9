"""Invalid fine-tunings: other models in one run, and incomplete weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from recipes.test_train_framework import FLAGS, logits_of, write_data
from recipes.tiny_llama import write_model

from windlass.errors import SpecError
from windlass.recipes.llm.model_files import fingerprint_weights
from windlass.recipes.train_framework import main

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m")
    write_data(tmp_path)
    return tmp_path


def refuse(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([*FLAGS, *words])
    assert ended.value.code == SpecError.exit_code
    output = capsys.readouterr().err
    assert "hint: " in output
    return output


def write_gpt(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=2, **sizes)).save_pretrained(folder)
    for path in (folder.parent / "m").glob("tokenizer*"):
        shutil.copy(path, folder)


def test_run_cannot_resume_with_another_model_scale_or_optimizer(work, capsys):
    write_model(work / "other", seed=1)
    first = ["--steps", "1", "--no-export", "--val-file", "none", "--checkpoint-every", "1"]
    more = [*first, "--steps", "2"]
    main([*FLAGS, *first])
    capsys.readouterr()
    assert ", but was " in refuse(capsys, *more, "--model-local-dir", "other")
    assert "the optimizer is " in refuse(capsys, *more, "--optimizer", "adamw8bit")
    shutil.move(work / "m", work / "moved")  # the same model in another folder
    main([*FLAGS, *more, "--model-local-dir", "moved"])
    assert "step=1/2" in capsys.readouterr().out
    adapters = ["--model-local-dir", "moved", "--run-id", "lora", "--lora", "4"]
    main([*FLAGS, *first, *adapters])
    capsys.readouterr()
    assert "--lora-alpha is 64, but was " in refuse(capsys, *more, *adapters, "--lora-alpha", "64")


def test_run_cannot_resume_with_other_adapters(work, capsys):
    first = ["--steps", "1", "--no-export", "--val-file", "none", "--checkpoint-every", "1"]
    main([*FLAGS, *first, "--lora", "4"])
    assert "[MODEL] adapters of rank 4 on 14 layers: " in capsys.readouterr().out
    for words in ((), ("--lora", "8")):
        output = refuse(capsys, *first, "--steps", "2", *words)
        assert "but was 4 when step 1 was saved" in output
        assert "--no-resume" in output


def test_model_without_causal_attention_is_refused(work, capsys):
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=300, num_attention_heads=4, **sizes)
    BertForMaskedLM(config).save_pretrained(work / "bert")
    for path in (work / "m").glob("tokenizer*"):
        shutil.copy(path, work / "bert")
    output = refuse(capsys, "--model-local-dir", "bert", "--steps", "1")
    assert "is not a causal language model" in output


@pytest.mark.long
def test_damaged_best_checkpoint_only_loses_its_export(work, capsys):
    flags = ["--scheduler", "constant", "--warmup", "0", "--lr", "1", "--validate-every", "1"]
    main([*FLAGS, *flags, "--steps", "3"])  # the loss gets worse from the first step on
    best = work / "o/run/best/rank-0/0.distcp"
    best.write_bytes(b"x" * best.stat().st_size)
    capsys.readouterr()
    main([*FLAGS, *flags, "--steps", "5", "--sync-to", str(work / "there")])
    assert "[EXPORT] no export/best: no checkpoint in " in capsys.readouterr().out
    assert (work / "there/run/export/final/model.safetensors").is_file()


@pytest.mark.long
def test_full_disk_at_the_end_is_reported_without_a_traceback(work, capsys):
    """A file size limit simulates the full disk. Checkpoints are small enough for it."""
    script = f"""
        import resource, signal
        from windlass.recipes import train_framework
        from windlass.recipes.llm import llm_trainer

        export = llm_trainer.LlmTrainer.export

        def export_without_room(*words):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            export(*words)

        llm_trainer.LlmTrainer.export = export_without_room
        train_framework.main({[*FLAGS, "--steps", "1", "--val-file", "none"]!r})
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert ran.returncode == 3, ran.stderr
    assert "error: cannot write o/run/export: " in ran.stderr
    assert "run the same command again" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_weights_of_another_model_are_recognized(work):
    write_model(work / "other", seed=1)
    shutil.copytree(work / "m", work / "copy")
    ours = fingerprint_weights(work / "m")
    assert ours == fingerprint_weights(work / "copy") != fingerprint_weights(work / "other")


@pytest.mark.long
def test_best_export_changes_from_link_to_folder(work):
    """The last step is the best one at first. Then the run resumes and its loss gets worse."""
    odd = [json.dumps({"text": "zzzz qqqq xxxx"}) for _ in range(9)]
    (work / "val.jsonl").write_text("\n".join(odd) + "\n")
    flags = ["--scheduler", "constant", "--warmup", "0", "--lr", "1e-2", "--validate-every", "1"]
    main([*FLAGS, *flags, "--steps", "3"])
    best, tokens = work / "o/run/export/best", torch.arange(30)[None]
    assert best.is_symlink()
    at_first = logits_of(best, tokens)
    main([*FLAGS, *flags, "--steps", "8"])
    assert not best.is_symlink()
    assert torch.equal(logits_of(best, tokens), at_first)


def test_llama_without_safetensors_uses_hugging_face(work, capsys):
    from safetensors.torch import load_file

    weights = work / "m/model.safetensors"
    torch.save(load_file(weights), work / "m/pytorch_model.bin")
    weights.unlink()
    main([*FLAGS, "--steps", "1", "--no-export", "--val-file", "none"])
    assert "Hugging Face's own model (its weights are not safetensors)" in capsys.readouterr().out


def test_rows_longer_than_the_positions_of_a_model_are_refused(work, capsys):
    write_gpt(work / "gpt")
    words = ["--steps", "1", "--no-export", "--val-file", "none", "--length", "256"]
    output = refuse(capsys, *words, "--model-local-dir", "gpt")
    assert "rows have 256 tokens, but the model was made for 128" in output
    config = json.loads((work / "m/config.json").read_text())
    config["max_position_embeddings"] = 128
    (work / "m/config.json").write_text(json.dumps(config))
    main([*FLAGS, *words])  # rotary embeddings extend to any position
    assert "[MODEL] rows have 256 tokens, but the model was made for 128" in capsys.readouterr().out


def test_missing_weights_are_not_initialized(work, capsys):
    write_gpt(work / "gpt")
    config = json.loads((work / "gpt/config.json").read_text())
    (work / "gpt/config.json").write_text(json.dumps({**config, "n_layer": 3}))
    output = refuse(capsys, "--steps", "1", "--model-local-dir", "gpt")
    assert "is missing" in output
    assert "transformer.h.2." in output


@pytest.mark.parametrize(
    ("name", "text", "output"),
    [
        ("config.json", '{"architectures": ["LlamaForCausalLM"]}', "config.json has no"),
        ("tokenizer.json", "{}", "transformers cannot read the tokenizer in m"),
    ],
)
def test_incomplete_weights_file_is_named(work, capsys, name, text, output):
    (work / "m" / name).write_text(text)
    assert output in refuse(capsys, "--steps", "1")


@pytest.mark.parametrize(
    "words", [["--lr", "-1"], ["--lora", "4", "--lora-alpha", "0"], ["--lora-alpha", "8"]]
)
def test_nonsensical_numbers_are_refused(work, capsys, words):
    assert words[-1].lstrip("-") in refuse(capsys, "--steps", "1", *words)


@pytest.mark.parametrize("cache", ["m/config.json", "m/config.json/deeper", "/proc/none"])
def test_unusable_token_folder_is_named(work, capsys, cache):
    assert "cannot write to" in refuse(capsys, "--steps", "1", "--cache", cache)


@pytest.mark.long
def test_model_with_dropout_resumes_exactly(work):
    write_gpt(work / "gpt")
    words = [*FLAGS, "--model-local-dir", "gpt", "--val-file", "none", "--scheduler", "constant"]
    main([*words, "--steps", "6", "--run-id", "whole"])
    main([*words, "--steps", "3", "--run-id", "stopped"])
    main([*words, "--steps", "6", "--run-id", "stopped"])
    tokens = torch.arange(30)[None]
    ends = [logits_of(work / "o" / run / "export/final", tokens) for run in ("whole", "stopped")]
    assert torch.equal(*ends)
