"""Loss without logits. Its value and gradients equal those of the plain loss."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from windlass.recipes.llm.cross_entropy import linear_cross_entropy
from windlass.train.data.token_packing import IGNORED

NUM_TOKENS, WIDTH, NUM_WORDS = 50, 16, 37


def make_inputs(dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 10, WIDTH, generator=rng, dtype=dtype, requires_grad=True)
    weight = torch.randn(NUM_WORDS, WIDTH, generator=rng, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, NUM_WORDS, (5, 10), generator=rng)
    labels[0, :7] = IGNORED
    labels[3] = IGNORED
    return hidden, weight, labels


def plain(hidden, weight, labels, scale):
    logits = (hidden @ weight.T).flatten(0, 1)
    return (
        functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
        * scale
    )


@pytest.mark.parametrize("chunk", [7, 10, 50, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradients_are_those_of_the_plain_loss(dtype, chunk):
    hidden, weight, labels = make_inputs(dtype)
    scale = 1 / int((labels != IGNORED).sum())
    expected = plain(hidden, weight, labels, scale)
    wanted = torch.autograd.grad(3.0 * expected, (hidden, weight))
    loss = linear_cross_entropy(hidden, weight, labels, scale=scale, chunk=chunk)
    gradients = torch.autograd.grad(3.0 * loss, (hidden, weight))
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, want, atol=1e-6, rtol=1e-5)


def test_scale_may_be_a_tensor_and_all_ignored_labels_give_zero():
    hidden, weight, labels = make_inputs()
    scaled = linear_cross_entropy(hidden, weight, labels, scale=torch.tensor(0.5))
    assert torch.equal(scaled, linear_cross_entropy(hidden, weight, labels, scale=0.5))
    nothing = linear_cross_entropy(hidden, weight, torch.full_like(labels, IGNORED))
    nothing.backward()
    assert nothing.item() == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_tied_weight_collects_both_gradients():
    _, weight, labels = make_inputs()
    tokens = labels.clamp(min=0)
    scale = 0.1
    (wanted,) = torch.autograd.grad(
        plain(functional.embedding(tokens, weight), weight, labels, scale), weight
    )
    loss = linear_cross_entropy(
        functional.embedding(tokens, weight), weight, labels, scale=scale, chunk=8
    )
    torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], wanted, atol=1e-6, rtol=1e-5)


def test_bfloat16_hidden_states_give_float32_weight_gradients():
    hidden, weight, labels = make_inputs()
    narrow = hidden.detach().bfloat16().requires_grad_()
    loss = linear_cross_entropy(narrow, weight, labels, scale=0.03, chunk=9)
    loss.backward()
    assert (loss.dtype, narrow.grad.dtype, weight.grad.dtype) == (
        torch.float32,
        torch.bfloat16,
        torch.float32,
    )
    torch.testing.assert_close(loss, plain(hidden, weight, labels, 0.03), rtol=0.02, atol=0.02)


def test_without_gradients_none_are_computed_and_a_second_pass_is_refused():
    hidden, weight, labels = make_inputs()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, labels)
    assert not loss.requires_grad
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()


def test_a_frozen_head_still_passes_gradients_on():
    hidden, weight, labels = make_inputs()
    loss = linear_cross_entropy(hidden, weight.detach(), labels, chunk=16)
    (wanted,) = torch.autograd.grad(plain(hidden, weight.detach(), labels, 1.0), hidden)
    torch.testing.assert_close(torch.autograd.grad(loss, hidden)[0], wanted, atol=1e-5, rtol=1e-5)
