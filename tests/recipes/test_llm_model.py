"""Llama of the recipes: logits as in transformers, separate packed documents, float8, adapters."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from recipes.tiny_llama import TINY

from windlass.errors import SpecError
from windlass.recipes.llm.fp8 import check_fp8, fp8_linear
from windlass.recipes.llm.linear_layers import use_fp8
from windlass.recipes.llm.llama import Llama, pad_offsets
from windlass.recipes.llm.llama_config import find_difference, make_hf_config, read_llama_config
from windlass.train.parallel.strategies import apply_activation_checkpoints


def make_model(**changes):
    model = Llama(replace(TINY, **changes))
    model.init_weights(seed=1)
    for weight in model.parameters():  # large enough that attention matters
        weight.data.mul_(5) if weight.dim() > 1 else weight.data.add_(
            0.1 * torch.randn_like(weight)
        )
    return model


def make_offsets(lengths):
    return pad_offsets(torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32))


def make_tokens(rows=2, length=48):
    return torch.randint(
        0, TINY.vocab_size, (rows, length), generator=torch.Generator().manual_seed(2)
    )


@pytest.mark.parametrize("is_scaled", [True, False], ids=["llama3", "plain"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_logits_are_those_of_transformers(tmp_path, is_tied, is_scaled):
    transformers = pytest.importorskip("transformers")
    from windlass.recipes.llm.model_build import load_llama, save_llama

    scaling = TINY.rope_scaling if is_scaled else None
    model = make_model(is_tied=is_tied, rope_scaling=scaling)
    save_llama(model, tmp_path, dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = make_tokens()
    with torch.no_grad():
        logits = model(tokens)
        torch.testing.assert_close(logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)
        theirs.save_pretrained(tmp_path / "theirs")
        back = load_llama(tmp_path / "theirs")
        assert torch.equal(back(tokens), logits)
    assert back.config == model.config
    assert (back.lm_head.weight is back.model.embed_tokens.weight) == is_tied


def test_packed_documents_are_computed_as_if_they_were_alone():
    model = make_model()
    tokens = make_tokens()
    lengths = (10, 30, 8, 48)  # three documents in the first row, one in the second
    positions = torch.cat([torch.arange(n) for n in lengths]).view(2, 48)
    packed = model(tokens, positions=positions, offsets=make_offsets(lengths)).flatten(0, 1)
    start = 0
    for length in lengths:
        alone = model(tokens.flatten()[None, start : start + length])[0]
        torch.testing.assert_close(packed[start : start + length], alone, atol=2e-5, rtol=1e-4)
        start += length


def test_the_loss_in_the_model_is_that_of_its_logits():
    model = make_model(is_tied=True)
    tokens = make_tokens()
    labels = torch.cat([tokens[:, 1:], torch.full((2, 1), -100)], dim=1)
    loss = model(tokens, labels=labels, scale=1 / 94)
    wanted = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-5)
    checkpointed = copy.deepcopy(model)
    for block in checkpointed.model.layers:
        apply_activation_checkpoints(block)
    checkpointed(tokens, labels=labels, scale=1 / 94).backward()
    loss.backward()
    for ours, theirs in zip(model.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


# a warning of torch's own question
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_compiled_layers_compute_the_same():
    model = make_model()
    tokens = make_tokens()
    lengths = (10, 38, 48)
    offsets = make_offsets(lengths)
    labels = tokens.roll(-1, dims=1)
    model(tokens, offsets=offsets, labels=labels).backward()
    compiled = copy.deepcopy(model)
    compiled.zero_grad()
    compiled.compile_blocks(backend="aot_eager")
    compiled(tokens, offsets=offsets, labels=labels).backward()
    for ours, theirs in zip(model.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    assert compiled.state_dict().keys() == model.state_dict().keys()


@pytest.mark.long
# a warning of torch's own question
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_compiled_layers_accept_batches_of_many_shapes():
    """By default, torch fails at the ninth shape (rows, documents, validation, inputs without gradients)."""
    model, tokens = make_model(), make_tokens()
    wanted = model(tokens[:1, :4])
    model.compile_blocks(backend="eager")
    for length in range(4, 14):
        model(tokens[:1, :length]).sum().backward()
        with torch.no_grad():
            model(tokens[:1, :length])
    torch.testing.assert_close(model(tokens[:1, :4]), wanted)


def test_weights_in_float32_are_computed_in_bfloat16():
    model = make_model()
    tokens = make_tokens()
    wide = model(tokens)
    model.model.compute_dtype = torch.bfloat16
    narrow = model(tokens)
    assert narrow.dtype == torch.bfloat16
    assert (narrow - wide).abs().mean() < 0.05 * wide.abs().mean()
    narrow.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_float8_is_close_and_excludes_the_head():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(64, 32, generator=rng, requires_grad=True)
    weight = torch.randn(48, 32, generator=rng, requires_grad=True)
    gradient = torch.randn(64, 48, generator=rng)
    x16, weight16 = (t.detach().bfloat16().requires_grad_() for t in (x, weight))
    out = fp8_linear(x16, weight16)
    out.backward(gradient.bfloat16())
    (x @ weight.T).backward(gradient)
    for near, exact in ((out, x @ weight.T), (x16.grad, x.grad), (weight16.grad, weight.grad)):
        assert (near.float() - exact).norm() < 0.06 * exact.norm()
    model = make_model()
    exact = model(make_tokens())
    assert use_fp8(model) == 7 * TINY.num_layers
    assert not model.lm_head.is_fp8
    model.model.compute_dtype = torch.bfloat16
    assert (model(make_tokens()) - exact).norm() < 0.15 * exact.norm()


@pytest.mark.parametrize("num_tokens", [1, 15, 33])
def test_float8_accepts_any_number_of_tokens(num_tokens):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, num_tokens, 32, generator=rng).bfloat16().requires_grad_()
    weight = torch.randn(48, 32, generator=rng).bfloat16().requires_grad_()
    out = fp8_linear(x, weight)
    out.float().square().sum().backward()
    gradients = x.grad.float(), weight.grad.float()
    x.grad = weight.grad = None
    exact = x @ weight.t()
    exact.float().square().sum().backward()
    assert (out - exact).norm() < 0.06 * exact.norm()
    for near, wanted in zip(gradients, (x.grad, weight.grad), strict=True):
        assert (near - wanted).norm() < 0.1 * wanted.norm()


def test_float8_is_refused_without_a_gpu_that_has_it():
    with pytest.raises(SpecError, match="needs a GPU"):
        check_fp8(torch.device("cpu"))


def test_adapters_can_be_added_to_its_layers():
    peft = pytest.importorskip("peft")
    model = make_model()
    before = model(make_tokens())
    config = peft.LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"])
    model = peft.inject_adapter_in_model(config, model)
    assert torch.equal(model(make_tokens()), before)  # adapters start at zero
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * 7 * TINY.num_layers


def test_models_of_another_architecture_are_reported():
    config = make_hf_config(TINY)
    assert find_difference(config) == ""
    assert read_llama_config(config) == TINY
    assert "GPT2LMHeadModel is not Llama-shaped" in find_difference(
        {**config, "architectures": ["GPT2LMHeadModel"]}
    )
    assert "attention_bias" in find_difference({**config, "attention_bias": True})
    assert "attention_dropout" in find_difference({**config, "attention_dropout": 0.1})
    mistral = {**config, "architectures": ["MistralForCausalLM"]}
    assert "sliding_window" in find_difference(mistral)  # the default of transformers
    assert find_difference({**mistral, "sliding_window": None}) == ""
    old = {k: v for k, v in config.items() if k != "rope_parameters"}
    assert read_llama_config(old) == TINY
    with pytest.raises(SpecError, match="sliding_window"):
        read_llama_config({**config, "sliding_window": 4096})


def test_weights_of_another_model_are_named(tmp_path):
    pytest.importorskip("safetensors")
    from windlass.recipes.llm.model_build import load_llama, save_weights

    model = make_model()
    weights = model.state_dict()
    del weights["model.norm.weight"]
    save_weights(weights, tmp_path, hf_config=make_hf_config(TINY), dtype=torch.float32)
    with pytest.raises(SpecError, match=r"is missing 1 weights, such as model\.norm\.weight"):
        load_llama(tmp_path)
    wrong = {**model.state_dict(), "model.norm.weight": torch.ones(3)}
    save_weights(wrong, tmp_path, hf_config=make_hf_config(TINY), dtype=torch.float32)
    with pytest.raises(SpecError, match=r"is \(3,\), but the model needs \(32,\)"):
        load_llama(tmp_path)
