"""Memory of GPUs: estimates against measured peaks, and rows that are halved until they fit."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from windlass.errors import EngineError, SpecError
from windlass.recipes.llm.gpu_memory import (
    choose_rows,
    estimate_bytes,
    fit_rows,
    fit_to_memory,
    suggest_smaller,
)
from windlass.recipes.llm.kernel_launch import can_tile, choose_part
from windlass.recipes.llm.llama_config import LlamaConfig, make_hf_config
from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.llm.llm_trainer import explain_out_of_memory, settle_options
from windlass.train.parallel.context import get_context
from windlass.train.parallel.shape import Shape

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
LLAMA_3_8B = replace(EIGHT_B, is_tied=False)
SEVENTY_B = replace(EIGHT_B, hidden_size=8192, mlp_size=28_672, num_layers=80, num_heads=64)
H200_GIB = 139.8


def options(*words):
    return replace(read_llm_options(["--model", "m", *words], {}), precision="bf16")


ALONE = Shape()


def fit(config, *words, memory_gib, shape=ALONE, rows=8):
    def estimate(rows):
        return estimate_bytes(config, options(*words), shape, num_tokens=4096 * rows)

    return fit_rows(rows, estimate=estimate, memory_bytes=memory_gib * GIB)


@pytest.mark.parametrize(
    ("words", "num_tokens", "seen_gib"),
    [  # measured on one H200, see docs/benchmarks.md
        ((), 32_768, 69.9),
        ((), 65_536, 110.2),
        (("--lora", "16"), 32_768, 42.5),
        (("--lora", "16"), 65_536, 74.5),
    ],
)
def test_estimates_are_near_the_measured_peaks(words, num_tokens, seen_gib):
    estimate = estimate_bytes(ONE_B, options(*words), ALONE, num_tokens=num_tokens)
    assert 0.95 * seen_gib < estimate / GIB < 1.05 * seen_gib


RECOMPUTED = ("--checkpoint-activations", "--micro-batch", "1")
EIGHT_BIT = (*RECOMPUTED, "--optimizer", "adamw8bit")


@pytest.mark.parametrize(
    ("config", "words", "seen_gib"),
    [  # the largest that trained on one H200, with one row of 4096 tokens at a time
        (replace(EIGHT_B, num_layers=36), RECOMPUTED, 130.0),
        (replace(EIGHT_B, num_layers=58), EIGHT_BIT, 129.0),
    ],
)
def test_estimates_with_recomputed_activations_are_near_the_measured_peaks(config, words, seen_gib):
    estimate = estimate_bytes(config, options(*words), ALONE, num_tokens=4096)
    assert 0.98 * seen_gib < estimate / GIB < 1.02 * seen_gib


def find_room(config, *words, memory_gib=H200_GIB, length=2048, shape=ALONE):
    asked = options("--length", str(length), *words)
    rows = choose_rows(asked, shape, config=config)
    messages = []
    settled = fit_to_memory(
        *(replace(asked, micro_batch=rows), shape, config),
        memory_bytes=round(memory_gib * GIB),
        rows_given=asked.micro_batch is not None,
        say=messages.append,
    )
    return settled, messages


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(EIGHT_B, num_layers=36), ("--checkpoint-activations",)),
        (replace(EIGHT_B, num_layers=58), EIGHT_BIT[:1] + EIGHT_BIT[3:]),
        (replace(SEVENTY_B, num_layers=76), ("--checkpoint-activations", "--lora", "16")),
    ],
)
def test_the_largest_models_that_trained_are_not_refused(config, words):
    settled, messages = find_room(config, *words, length=4096)
    assert settled.micro_batch == 1
    assert messages[-1].startswith("this may not fit; options that use less memory: ")


def test_model_that_did_not_fit_is_refused():
    with pytest.raises(SpecError, match="does not fit: one row of 4096 tokens at a time with "):
        find_room(replace(EIGHT_B, num_layers=37), length=4096)


def test_8b_with_defaults_recomputes_activations_on_an_h200():
    settled, messages = find_room(LLAMA_3_8B)
    assert settled.checkpoint_activations
    assert (settled.micro_batch, settled.optimizer) == (2, "adamw")
    assert messages == [
        (
            "activation checkpointing is on: without it one row at a time would need about 146 GiB "
            "(the GPU has 140 GiB); steps take up to a third longer"
        ),
        (
            "processing 2 rows at a time, because 16 would need about 140 GiB (the GPU has 140 GiB); "
            "a step takes 16 passes instead of 2"
        ),
        "2 rows of 2048 tokens at a time should need about 126 GiB (the GPU has 140 GiB)",
    ]
    assert find_room(LLAMA_3_8B, "--optimizer", "adamw8bit")[0].checkpoint_activations is False


def test_settings_that_fit_are_unchanged_and_not_logged():
    settled, messages = find_room(ONE_B)
    assert (settled.micro_batch, settled.checkpoint_activations, messages) == (16, False, [])


def test_given_settings_are_kept():
    settled, messages = find_room(LLAMA_3_8B, "--micro-batch", "3")
    assert (settled.micro_batch, settled.checkpoint_activations) == (3, True)
    assert len(messages) == 2
    with pytest.raises(SpecError, match="without activation checkpointing") as refused:
        find_room(LLAMA_3_8B, "--no-checkpoint-activations")
    assert "--micro-batch 1 --no-checkpoint-activations tries it" in refused.value.hint
    both = ("--micro-batch", "1", "--no-checkpoint-activations")
    settled, messages = find_room(LLAMA_3_8B, *both, memory_gib=10)
    assert (settled.micro_batch, settled.checkpoint_activations, messages) == (1, False, [])


def test_a_model_that_never_fits_is_refused_with_the_numbers():
    with pytest.raises(SpecError) as refused:
        find_room(SEVENTY_B)
    assert refused.value.message == (
        "this training run does not fit: one row of 2048 tokens at a time with activation checkpointing "
        "would need about 1047 GiB (the GPU has 140 GiB)"
    )
    assert refused.value.hint == (
        "options that use less memory: --optimizer adamw8bit, --lora 16, --strategy fsdp over more GPUs, "
        "a smaller --length; --micro-batch 1 --checkpoint-activations tries it without this estimate"
    )


def test_over_more_gpus_it_fits_with_fewer_rows_alone():
    words = ("--strategy", "fsdp")
    settled, _ = find_room(LLAMA_3_8B, *words, shape=Shape(fsdp=8), memory_gib=79)
    assert settled.micro_batch == 4
    assert not settled.checkpoint_activations


def test_model_that_fits_keeps_its_micro_batch():
    assert fit(ONE_B, memory_gib=139) == 8
    assert fit(ONE_B, memory_gib=79) == 8


def test_larger_models_take_fewer_rows():
    assert fit(THREE_B, memory_gib=139) == 4
    assert fit(THREE_B, memory_gib=79) == 1
    assert fit(THREE_B, "--checkpoint-activations", memory_gib=79) == 8
    assert fit(EIGHT_B, memory_gib=79) == 1  # which does not fit either, and prints so itself
    assert fit(EIGHT_B, "--lora", "16", memory_gib=139, rows=16) == 4
    assert fit(EIGHT_B, "--lora", "16", memory_gib=79, rows=16) == 2
    assert fit(ONE_B, "--lora", "16", memory_gib=139, rows=16) == 16
    assert fit(ONE_B, "--lora", "16", memory_gib=79, rows=16) == 8
    assert fit(EIGHT_B, memory_gib=139) == 1
    assert fit(EIGHT_B, memory_gib=139, shape=Shape(fsdp=8)) == 4
    assert fit(EIGHT_B, memory_gib=79, rows=1) == 1


def test_rows_are_halved_until_they_fit():
    def fit_within(memory_bytes):
        return fit_rows(12, estimate=lambda rows: 10 * rows, memory_bytes=memory_bytes)

    assert [fit_within(room) for room in (1000, 100, 1)] == [12, 6, 1]


def choose(*words, config=ONE_B, length=4096, shape=ALONE):
    asked = options("--length", str(length), *words)
    return choose_rows(replace(asked, fp8="fp8" in words), shape, config=config)


def test_adapters_use_larger_micro_batches_and_lower_them_to_fit():
    assert choose() == 8
    assert choose("--lora", "16") == 16
    assert choose("--lora", "16", config=None) == 8
    assert choose("--lora", "16", "--batch", "4") == 4


def test_larger_micro_batches_need_a_joined_mlp():
    assert choose("--lora", "64") == 8
    assert choose("--lora", "16", "--precision", "fp8") == 8
    assert choose("--lora", "16", config=replace(ONE_B, mlp_size=8200)) == 8
    assert choose("--lora", "16", config=replace(ONE_B, hidden_size=2056)) == 8
    assert choose("--lora", "16", shape=Shape(tp=2)) == 8
    assert choose("--lora", "16", "--lora-targets", "q_proj,down_proj") == 8
    assert choose("--lora", "16", "--lora-targets", "up_proj,down_proj") == 16
    assert choose("--lora", "16", length=4095) == 16  # the token count is a multiple of 16
    # in parts of 16 tokens, there would be too many parts
    assert choose("--lora", "16", length=4112) == 7


def test_micro_batches_have_equal_sizes():
    # not 16 and 8, because each size is compiled separately
    assert choose("--batch", "24", "--lora", "16") == 12
    assert choose("--batch", "9") == 5
    assert choose("--batch", "1") == 1
    assert choose("--batch", "3", length=100_000) == 1


def test_separate_mlp_keeps_more_memory():
    asked = options("--lora", "16")
    joined, apart = (
        estimate_bytes(ONE_B, asked, ALONE, num_tokens=num) for num in (65_536, 65_536 + 8)
    )
    kept = 2 * ONE_B.num_layers * ONE_B.mlp_size * 65_536  # the output of the gate
    assert kept < apart - joined < 1.01 * kept


@pytest.mark.parametrize(
    ("num_tokens", "size"),
    [(65_536, 1024), (16, 16), (48, 48), (1024, 1024), (16 * 4095, 1008), (1280, 640)],
)
def test_tokens_are_added_up_in_equal_parts(num_tokens, size):
    assert choose_part(num_tokens) == size


@pytest.mark.parametrize("num_tokens", [15, 1000, 4100, 16 * 257, 15 * 4112])
def test_tokens_that_cannot_be_tiled(num_tokens):
    assert choose_part(num_tokens) == 0
    assert not can_tile(num_tokens, hidden_size=2048, mlp_size=8192)


def settle(folder, monkeypatch, *words, memory_gib):
    # properties of a GPU that this machine lacks
    properties = SimpleNamespace(total_memory=memory_gib * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    messages = []
    asked = read_llm_options(["--model", "m", "--length", "4096", *words], {})
    context = replace(get_context(), device=torch.device("cuda"))
    settled = settle_options(
        asked, context, folder=folder, say=lambda *words: messages.append(words[1])
    )
    return settled, messages


def make_folder(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.parametrize(
    ("words", "memory_gib", "rows"),
    [
        ((), 139, 8),
        (("--lora", "16"), 139, 16),
        (("--lora", "16", "--micro-batch", "32", "--no-checkpoint-activations"), 10, 32),
        (("--lora", "16"), 79, 8),
        (("--lora", "64"), 139, 8),
    ],
)
def test_settings_chosen_for_a_gpu(tmp_path, monkeypatch, words, memory_gib, rows):
    folder = make_folder(tmp_path, make_hf_config(ONE_B))
    settled, messages = settle(folder, monkeypatch, *words, memory_gib=memory_gib)
    assert (settled.micro_batch, settled.precision, settled.compile) == (rows, "bf16", True)
    lowered = "processing 8 rows at a time, because 16 would need about 73 GiB (the GPU has 79 GiB)"
    assert [text.partition(";")[0] for text in messages[:1]] == [lowered] * (memory_gib == 79)


def test_memory_of_another_model_is_unknown(tmp_path, monkeypatch):
    config = make_hf_config(ONE_B) | {"architectures": ["GPT2LMHeadModel"]}
    folder = make_folder(tmp_path, config)
    settled, messages = settle(folder, monkeypatch, "--lora", "16", memory_gib=1)
    assert settled.micro_batch == 8
    assert not messages


def test_out_of_memory_error_shows_the_numbers():
    torchs = (
        "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 139.80 GiB of "
        "which 1.20 GiB is free. Process 7 has 138.59 GiB memory in use. See documentation."
    )
    with (
        pytest.raises(EngineError) as explained,
        explain_out_of_memory(replace(options(), micro_batch=8)),
    ):
        raise torch.OutOfMemoryError(torchs)
    assert explained.value.message == (
        "the GPU ran out of memory: Tried to allocate 1.96 GiB. GPU 0 has a total capacity "
        "of 139.80 GiB of which 1.20 GiB is free"
    )
    assert explained.value.hint == (
        "options that use less memory: --micro-batch 4, --checkpoint-activations, --optimizer adamw8bit, "
        "--lora 16, --strategy fsdp over more GPUs, a smaller --length"
    )
    with (
        pytest.raises(EngineError, match="the GPU ran out of memory\n"),
        explain_out_of_memory(options()),
    ):
        raise torch.OutOfMemoryError("of other words")
    small = options("--lora", "8", "--strategy", "fsdp", "--checkpoint-activations")
    assert suggest_smaller(replace(small, micro_batch=1)) == "a smaller --length"
