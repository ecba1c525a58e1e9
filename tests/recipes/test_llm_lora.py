"""Adapters that are computed together with their layers. They match peft at any rank and on any layers."""

from __future__ import annotations

import copy

import pytest
import torch
from recipes.tiny_llama import TINY

from windlass.recipes.llm.linear_layers import (
    Adapter,
    CastLinear,
    adapted_linear,
    fp8_adapted_linear,
    join_adapters,
    join_matrix,
    keep_frozen_joined,
    use_fp8,
)
from windlass.recipes.llm.llama import Llama
from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.llm.model_build import add_adapters

pytest.importorskip("peft")
TARGETS = [(), ("q_proj", "v_proj"), ("down_proj",), ("up_proj", "o_proj", "0.mlp.gate_proj")]


def make_adapted(*, rank: int, targets: tuple[str, ...] = ()) -> Llama:
    model = Llama(TINY)
    model.init_weights(seed=1)
    words = ["--model", "m", "--lora", str(rank)]
    words += ["--lora-targets", ",".join(targets)] if targets else []
    add_adapters(model, read_llm_options(words, {}), say=print)
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.3, generator=generator)
    return model.double()


def remove_joining(model: Llama) -> Llama:
    """Return a copy of the model that computes its adapters as peft alone would."""
    model = copy.deepcopy(model)
    model.model._forward_pre_hooks.clear()
    for layer in model.modules():
        vars(layer).pop("joined_adapter", None)
    return model


def learn(model: Llama, tokens: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = model(tokens, labels=tokens.roll(-1, 1))
    loss.backward()
    return loss, {name: w.grad for name, w in model.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("is_kept", [False, True], ids=["joined each time", "kept joined"])
@pytest.mark.parametrize("targets", TARGETS, ids=["all", "some", "one", "mixed"])
@pytest.mark.parametrize("rank", [1, 3, 16, 70])
def test_loss_and_gradients_are_those_of_peft(rank, targets, is_kept):
    joined = make_adapted(rank=rank, targets=targets)
    alone = remove_joining(joined)
    if is_kept:
        keep_frozen_joined(joined.model)
    tokens = torch.arange(60).reshape(2, 30) * 7 % TINY.vocab_size
    loss, gradients = learn(joined, tokens)
    expected, expected_gradients = learn(alone, tokens)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-10)
    assert gradients.keys() == expected_gradients.keys()
    assert all("lora_" in name for name in gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-9, atol=1e-9)


def test_weights_that_are_kept_joined_are_held_once():
    model = make_adapted(rank=4)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    keep_frozen_joined(model.model)
    model(torch.arange(20)[None])
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name
    attention = model.model.layers[0].self_attn
    parts = [getattr(attention, name).base_layer.weight for name in ("q_proj", "k_proj", "v_proj")]
    joined = attention.q_proj.base_layer.joined
    assert {part.untyped_storage().data_ptr() for part in parts} == {joined.data_ptr()}
    assert not any(
        "joined" in name for name, _ in [*model.named_buffers(), *model.named_parameters()]
    )


def test_joined_weights_follow_their_adapters_and_model():
    model = make_adapted(rank=4)
    keep_frozen_joined(model.model)
    tokens = torch.arange(40).reshape(2, 20)
    adapters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=0.1)
    for _ in range(2):
        learn(model, tokens)
        optimizer.step()
        optimizer.zero_grad()
    alone = remove_joining(model)
    torch.testing.assert_close(model(tokens), alone(tokens), rtol=1e-10, atol=1e-10)
    moved = model.float()
    with torch.no_grad():
        for weight in moved.parameters():
            weight.mul_(1.5)
    alone = remove_joining(moved)
    torch.testing.assert_close(moved(tokens), alone(tokens), rtol=1e-4, atol=1e-4)


def test_two_passes_before_one_backward_are_as_with_peft():
    model = make_adapted(rank=4)
    keep_frozen_joined(model.model)
    alone = remove_joining(model)
    tokens, others = torch.arange(40).reshape(2, 20), torch.arange(40, 80).reshape(2, 20)
    gradients = []
    for one in (model, alone):
        (one(tokens).sum() + one(others).square().sum()).backward()
        gradients.append([w.grad for w in one.parameters() if w.grad is not None])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [(32, 64), (64, 32)], ids=["widening", "narrowing"])
def test_backward_pass_keeps_no_other_tensors_alive(sizes):
    num_in, num_out = sizes
    down = torch.randn(4, num_in, requires_grad=True)
    up = torch.randn(num_out, 4, requires_grad=True)
    adapter = join_adapters([Adapter(down, up)], [num_out])
    joined = join_matrix(torch.randn(num_out, num_in), adapter)
    x = torch.randn(100, num_in, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda tensor: tensor):
        adapted_linear(x, joined, adapter)
    numbers = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() // 4 for one in kept
    }
    limit = 100 * (num_in + 64) + joined.numel() + 2 * 64 * (num_in + num_out)
    assert sum(numbers.values()) <= limit


def test_layers_are_joined_and_not_called():
    model = make_adapted(rank=4)
    calls = []
    for layer in model.model.layers.modules():
        if isinstance(layer, CastLinear) or hasattr(layer, "base_layer"):
            layer.register_forward_hook(lambda *_: calls.append(1))
    model(torch.arange(20)[None])
    assert not calls


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # the compiler warns about its own code
def test_blocks_with_adapters_are_compiled_as_one_graph():
    model = make_adapted(rank=4)
    tokens = torch.arange(40).reshape(2, 20)
    expected, expected_gradients = learn(copy.deepcopy(model), tokens)
    keep_frozen_joined(model.model)
    model.compile_blocks(backend="aot_eager")
    loss, gradients = learn(model, tokens)
    torch.testing.assert_close(loss, expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name])


def test_an_input_that_needs_no_gradient_gets_none():
    x = torch.randn(6, 8, dtype=torch.float64)
    weight = torch.randn(5, 8, dtype=torch.float64)
    down = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    up = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    adapter = join_adapters([Adapter(down, up)], [5])
    adapted_linear(x, join_matrix(weight, adapter), adapter).square().sum().backward()
    gradients = down.grad.clone(), up.grad.clone()
    down.grad = up.grad = None
    (x @ (weight + up @ down).t()).square().sum().backward()
    torch.testing.assert_close(gradients, (down.grad, up.grad))


def make_near(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def test_frozen_float8_layers_keep_their_adapters_separate():
    x, weight, outer = make_near(256, 128), make_near(192, 128), make_near(256, 192)
    down, up = make_near(16, 128), make_near(192, 16)
    results = []
    for is_fp8 in (True, False):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, down, up)]
        adapter = join_adapters([Adapter(*leaves[1:])], [192])
        if is_fp8:
            out = fp8_adapted_linear(leaves[0], weight, adapter)
        else:
            out = adapted_linear(leaves[0], join_matrix(weight, adapter), adapter)
        out.backward(outer)
        results.append([out, *(leaf.grad for leaf in leaves)])
    for near, exact in zip(*results, strict=True):
        assert (near - exact).norm() < 0.05 * exact.norm()
    assert not torch.equal(results[0][0], results[1][0])  # it was computed in float8


def test_a_model_in_float8_with_adapters_learns():
    model = make_adapted(rank=4).bfloat16()
    expected, _ = learn(remove_joining(model), tokens := torch.arange(40).reshape(2, 20))
    assert use_fp8(model) == 7 * TINY.num_layers
    loss, gradients = learn(model, tokens)
    assert (loss - expected).abs() < 0.02 * expected
    assert len(gradients) == 2 * 7 * TINY.num_layers
    assert all(gradient.isfinite().all() for gradient in gradients.values())
