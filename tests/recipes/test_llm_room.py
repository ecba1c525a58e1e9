"""What a GPU has room for: estimates against peaks that were seen, rows that are halved until they fit."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from recipes.tiny_llama import TINY

from windlass.recipes.llm_config import LlamaConfig, make_hf_config
from windlass.recipes.llm_options import read_llm_options
from windlass.recipes.llm_room import Footprint, estimate_footprint, fit_rows, suggest_smaller
from windlass.recipes.llm_trainer import (
    explain_out_of_memory,
    lower_micro_batch,
    settle_options,
)
from windlass.train.context import get_context
from windlass.train.shape import Shape

GIB = 2**30
ONE_B = LlamaConfig(
    vocab_size=128_256,
    hidden_size=2048,
    mlp_size=8192,
    num_layers=16,
    num_heads=32,
    num_kv_heads=8,
    head_size=64,
    is_tied=True,
)
THREE_B = replace(ONE_B, hidden_size=3072, num_layers=28, num_heads=24, head_size=128)
EIGHT_B = replace(ONE_B, hidden_size=4096, mlp_size=14_336, num_layers=32, head_size=128)


def options(*words):
    return replace(read_llm_options(["--model", "m", *words], {}), precision="bf16")


ALONE = Shape()


def fit(config, *words, memory_gib, shape=ALONE, rows=8):
    footprint = estimate_footprint(config, options(*words), shape=shape)
    return fit_rows(rows, length=4096, footprint=footprint, memory_bytes=memory_gib * GIB)


@pytest.mark.parametrize(
    ("words", "num_tokens", "seen_gib"),
    [  # on one H200, see docs/benchmarks.md
        ((), 32_768, 69.9),
        ((), 65_536, 110.2),
        (("--lora", "16"), 32_768, 42.5),
        (("--lora", "16"), 65_536, 74.5),
    ],
)
def test_estimates_are_near_the_peaks_that_were_seen(words, num_tokens, seen_gib):
    footprint = estimate_footprint(ONE_B, options(*words), shape=ALONE)
    assert 0.95 * seen_gib < footprint.count(num_tokens) / GIB < 1.05 * seen_gib


def test_a_model_that_fits_takes_what_it_took():
    assert fit(ONE_B, memory_gib=139) == 8
    assert fit(ONE_B, memory_gib=79) == 8


def test_larger_models_take_fewer_rows():
    assert fit(THREE_B, memory_gib=139) == 4
    assert fit(THREE_B, memory_gib=79) == 1
    assert fit(THREE_B, "--checkpoint-activations", memory_gib=79) == 8
    assert fit(EIGHT_B, memory_gib=79) == 1  # which has no room either, and says so by itself
    assert fit(EIGHT_B, "--lora", "16", memory_gib=139, rows=16) == 4
    assert fit(EIGHT_B, "--lora", "16", memory_gib=79, rows=16) == 2
    assert fit(ONE_B, "--lora", "16", memory_gib=139, rows=16) == 16
    assert fit(ONE_B, "--lora", "16", memory_gib=79, rows=16) == 8
    assert fit(EIGHT_B, memory_gib=139) == 1
    assert fit(EIGHT_B, memory_gib=139, shape=Shape(fsdp=8)) == 4
    assert fit(EIGHT_B, memory_gib=79, rows=1) == 1


def test_rows_are_halved_until_they_fit():
    footprint = Footprint(fixed_bytes=0, bytes_per_token=1)
    assert fit_rows(12, length=10, footprint=footprint, memory_bytes=1000) == 12
    assert fit_rows(12, length=10, footprint=footprint, memory_bytes=100) == 6
    assert fit_rows(12, length=10, footprint=footprint, memory_bytes=1) == 1


def test_what_is_lowered_is_said(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(make_hf_config(TINY)))
    said = []
    asked = replace(options("--length", "1024"), micro_batch=32)
    settled = lower_micro_batch(
        *(asked, ALONE),
        folder=tmp_path,
        memory_bytes=7 * GIB,
        say=lambda *words: said.append(words),
    )
    assert settled.micro_batch == 1
    [(tag, text), (_, warning)] = said
    assert tag == "MODEL"
    assert text == "rows at a time: 1, since 32 would take some 7 GiB of the GPU's 7"
    assert warning.startswith(
        "this may not fit: it takes some 7 GiB of the GPU's 7; what takes less: "
    )


def settle(folder, monkeypatch, *words, memory_gib):
    properties = SimpleNamespace(total_memory=memory_gib * GIB)  # of a GPU that is not here
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    said = []
    asked = read_llm_options(["--model", "m", "--length", "4096", *words], {})
    context = replace(get_context(), device=torch.device("cuda"))
    settled = settle_options(asked, context, folder=folder, say=lambda *told: said.append(told[1]))
    return settled, said


def make_folder(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.parametrize(
    ("words", "memory_gib", "rows"),
    [
        ((), 139, 8),
        (("--lora", "16"), 139, 16),
        (("--lora", "16", "--micro-batch", "32"), 10, 32),
        (("--lora", "16"), 79, 8),
        (("--lora", "64"), 139, 8),
    ],
)
def test_what_is_settled_for_a_gpu(tmp_path, monkeypatch, words, memory_gib, rows):
    folder = make_folder(tmp_path, make_hf_config(ONE_B))
    settled, said = settle(folder, monkeypatch, *words, memory_gib=memory_gib)
    assert (settled.micro_batch, settled.precision, settled.compile) == (rows, "bf16", True)
    is_lowered = memory_gib == 79
    assert (
        said == ["rows at a time: 8, since 16 would take some 73 GiB of the GPU's 79"] * is_lowered
    )


def test_of_another_model_it_is_not_known_what_it_takes(tmp_path, monkeypatch):
    config = make_hf_config(ONE_B) | {"architectures": ["GPT2LMHeadModel"]}
    folder = make_folder(tmp_path, config)
    settled, said = settle(folder, monkeypatch, "--lora", "16", memory_gib=1)
    assert settled.micro_batch == 8
    assert not said


def test_a_gpu_without_room_is_explained_and_the_error_stays(capsys):
    with (
        pytest.raises(torch.OutOfMemoryError, match="of memory"),
        explain_out_of_memory(replace(options(), micro_batch=8)),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert capsys.readouterr().err == (
        "error: the GPU has no room for this training\n"
        "  hint: what takes less: --micro-batch 4, --checkpoint-activations, --optimizer adamw8bit, "
        "--lora 16, --strategy fsdp over more GPUs, a smaller --length\n"
    )
    small = options("--lora", "8", "--strategy", "fsdp", "--checkpoint-activations")
    assert suggest_smaller(replace(small, micro_batch=1)) == "a smaller --length"
