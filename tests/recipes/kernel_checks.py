"""Checks of every Triton kernel of the recipes against plain PyTorch.

They use a GPU, or Triton's interpreter on a CPU. test_llm_kernels.py runs this file in a separate process,
which starts with TRITON_INTERPRET=1 if there is no GPU.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from windlass.recipes.llm.cross_entropy import linear_cross_entropy, score
from windlass.recipes.llm.fp8 import quantize, quantize_both
from windlass.recipes.llm.gated_mlp import adapted_mlp, can_join, swiglu
from windlass.recipes.llm.kernel_launch import can_launch
from windlass.recipes.llm.linear_layers import (
    Adapted,
    Adapter,
    join_adapters,
    join_matrix,
    place_columns,
)
from windlass.recipes.llm.llama import Llama
from windlass.recipes.llm.llama_config import LlamaConfig
from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.llm.model_build import prepare_layers
from windlass.train.data.token_packing import IGNORED

# Triton's interpreter loses the carry if a number is rounded up to a power of two.
TOLERANCE = 0.005 if torch.cuda.is_available() else 0.08
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _exact_dot(monkeypatch):
    """Multiply numbers. Triton's interpreter multiplies the bits of bfloat16 instead."""
    if torch.cuda.is_available():
        return
    import numpy
    from triton import language
    from triton.runtime import interpreter

    def read(handle):
        if handle.dtype.scalar != language.bfloat16:
            return handle.data
        return (handle.data.astype(numpy.uint32) << 16).view(numpy.float32)

    def dot(_builder, left, right, total, _precision, _most):
        data = numpy.matmul(read(left), read(right), dtype=total.data.dtype) + total.data
        return interpreter.TensorHandle(data, total.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def test_kernels_are_used_here():
    assert can_launch(make(1))


@pytest.mark.parametrize("width", [5, 8192, 20_000])
def test_losses_and_gradients_of_logits(width):
    logits = 3 * make(6, width)
    labels = torch.tensor([0, width - 1, IGNORED, 3, 2, IGNORED], device=DEVICE)
    scale = torch.tensor(0.25, device=DEVICE)
    plain = logits.clone().requires_grad_()
    wanted = functional.cross_entropy(plain, labels, ignore_index=IGNORED, reduction="sum")
    (wanted * scale).backward()
    loss, untouched = score(logits.clone(), labels, scale, needs_gradient=False)
    torch.testing.assert_close(loss, wanted)
    assert torch.equal(untouched, logits)
    loss, gradient = score(logits, labels, scale, needs_gradient=True)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient, plain.grad, atol=1e-6, rtol=1e-6)


def test_losses_of_logits_in_bfloat16_and_labels_of_32_bits():
    logits = (3 * make(5, 4099)).bfloat16()
    labels = torch.tensor([0, 4098, IGNORED, 3, 2], dtype=torch.int32, device=DEVICE)
    scale = torch.tensor(1.0, device=DEVICE)
    plain = logits.float().requires_grad_()
    wanted = functional.cross_entropy(plain, labels.long(), ignore_index=IGNORED, reduction="sum")
    wanted.backward()
    loss, gradient = score(logits.clone(), labels, scale, needs_gradient=True)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradient.float(), plain.grad, atol=1e-6, rtol=1e-2)


# numpy, used by the interpreter, warns of these
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logits_give_non_finite_loss_and_gradient(value):
    logits = make(3, 20)
    logits[1, 7] = value
    labels = torch.tensor([1, 2, 3], device=DEVICE)
    scale = torch.tensor(1.0, device=DEVICE)
    loss, gradient = score(logits, labels, scale, needs_gradient=True)
    assert not loss.isfinite()
    assert not gradient[1].isfinite().all()
    assert gradient[0].isfinite().all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_label_outside_the_vocabulary_is_not_read():
    labels = torch.tensor([1, 20, 3], device=DEVICE)
    scale = torch.tensor(1.0, device=DEVICE)
    loss, _ = score(make(3, 20), labels, scale, needs_gradient=True)
    assert loss.isnan()


@pytest.mark.parametrize(
    "cut", [lambda t: t[:, 3:], lambda t: t.t()[:1].t(), lambda t: t[:1, 2].expand(6, 1)]
)
def test_labels_that_are_not_contiguous(cut):
    labels = cut(torch.arange(24, device=DEVICE).view(6, 4))
    hidden, weight = make(6, 1, 8), make(50, 8, seed=1)
    wanted = functional.cross_entropy(
        (hidden @ weight.t()).flatten(0, 1), labels.flatten(), reduction="sum"
    )
    torch.testing.assert_close(linear_cross_entropy(hidden, weight, labels), wanted)


def test_the_whole_loss_by_its_kernel():
    hidden, weight = make(9, 8).requires_grad_(), make(50, 8, seed=1).requires_grad_()
    labels = torch.tensor([1, 2, IGNORED, 4, 49, 0, 7, IGNORED, 9], device=DEVICE)
    loss = linear_cross_entropy(hidden, weight, labels, scale=0.5, chunk=4)
    loss.backward()
    gradients = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    wanted = functional.cross_entropy(hidden @ weight.t(), labels, reduction="sum") / 2
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradients, (hidden.grad, weight.grad), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("width", [7, 1024, 1500])
def test_the_gate_and_its_gradient(width):
    both = make(3, 2 * width).requires_grad_()
    outer = make(3, width, seed=1)
    swiglu(both).backward(outer)
    gradient, both.grad = both.grad, None
    wanted = functional.silu(both[:, :width]) * both[:, width:]
    wanted.backward(outer)
    torch.testing.assert_close(swiglu(both), wanted)
    torch.testing.assert_close(gradient, both.grad)
    cut = make(3, 2 * width + 3)[:, 1:-2]
    wanted = functional.silu(cut[:, :width]) * cut[:, width:]
    torch.testing.assert_close(swiglu(cut), wanted)
    torch.testing.assert_close(swiglu(cut.bfloat16()).float(), wanted, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("shape", [(3, 5), (128, 128), (600, 300)], ids=str)
def test_float8_of_rows_and_of_columns(shape):
    x = make(*shape, dtype=torch.bfloat16)
    x[1] *= 1e-6  # a row of small numbers is as exact as any other
    x[:, 2] = 0.0
    for (values, scales), wanted in zip(
        quantize_both(x), (quantize(x), quantize(x.t().contiguous())), strict=True
    ):
        torch.testing.assert_close(scales, wanted.scales)
        got, exact = values.float(), wanted.values.float()
        assert (got - exact).norm() <= TOLERANCE * exact.norm()
        assert torch.equal(got == 0, exact == 0)


@pytest.mark.skipif(DEVICE == "cpu", reason="float8 of Triton's interpreter has no NaN")
def test_nan_stays_nan():
    x = make(4, 4, dtype=torch.bfloat16)
    x[2, 3] = float("nan")
    by_row, by_column = quantize_both(x)
    assert by_row.values[2, 3].float().isnan()
    assert by_column.values[3, 2].float().isnan()


@pytest.mark.parametrize("ranks", [(16, 16, 16), (8, 8, 8), (20, 0, 20), (0, 4, 32)])
@pytest.mark.parametrize("num_tokens", [16, 48, 1024, 1040, 1280])
def test_a_whole_mlp_with_adapters(ranks, num_tokens):
    x, groups, weights, learned = make_mlp(ranks, num_tokens)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    if num_tokens == 1040:  # in parts of 16 tokens, there would be too many parts
        assert not can_join(one, *groups)
        return
    assert can_join(one, *groups)
    out = adapted_mlp(one, *groups)
    out.backward(make(*out.shape, seed=2))
    sides = [side for adapter in learned for side in adapter if side.numel()]
    gradients = [one.grad, *(side.grad for side in sides)]
    for side in sides:
        side.grad = None
    wanted = run_plain(other, weights, learned)
    wanted.backward(make(*out.shape, seed=2))
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-4)
    wanted_gradients = [other.grad, *(side.grad for side in sides)]
    torch.testing.assert_close(gradients, wanted_gradients, atol=1e-4, rtol=1e-4)


def test_a_whole_mlp_with_adapters_in_bfloat16():
    x, groups, weights, learned = make_mlp((16, 8, 16), 1280)
    narrow = x.bfloat16().requires_grad_()
    groups = [one._replace(joined=one.joined.bfloat16()) for one in groups]
    assert can_join(narrow, *groups)
    out = adapted_mlp(narrow, *groups)
    out.backward(make(*out.shape, seed=2).bfloat16())
    sides = [side for adapter in learned for side in adapter]
    seen = [out, narrow.grad, *(side.grad for side in sides)]
    wide = x.clone().requires_grad_()
    for side in sides:
        side.grad = None
    exact = run_plain(wide, weights, learned)
    exact.backward(make(*out.shape, seed=2))
    for value, wanted in zip(seen, [exact, wide.grad, *(s.grad for s in sides)], strict=True):
        assert (value.float() - wanted).norm() < 0.02 * wanted.norm()


def run_plain(x, weights, learned):
    gate, up, last = (w + a.up @ a.down for w, a in zip(weights, learned, strict=True))
    return (functional.silu(x @ gate.t()) * (x @ up.t())) @ last.t()


def make_mlp(ranks, num_tokens):
    x, weights, learned = make(num_tokens, 64), [], []
    for number, (rank, num_in) in enumerate(zip(ranks, (64, 64, 128), strict=True)):
        num_out = 192 - num_in
        weights.append(make(num_out, num_in, seed=10 + number) / 8)
        down = make(rank, num_in, seed=20 + number).div(8).requires_grad_()
        up = make(num_out, rank, seed=30 + number).div(8).requires_grad_()
        learned.append(Adapter(down, up))
    adapters = [one if one.down.shape[0] else None for one in learned]
    groups = []
    for part in (slice(0, 2), slice(2, 3)):
        sizes = [len(weight) for weight in weights[part]]
        adapter = join_adapters(adapters[part], sizes)
        joined = join_matrix(torch.cat(weights[part]), adapter)
        groups.append(Adapted(joined, adapter, place_columns(adapters[part])))
    return x, groups, weights, learned


@pytest.mark.parametrize(
    ("num_tokens", "hidden", "width", "rank"),
    [(15, 64, 64, 16), (16, 64, 63, 16), (16, 64, 64, 33), (16, 32, 64, 16)],
)
def test_unsupported_mlp_does_not_use_the_kernel(num_tokens, hidden, width, rank):
    def adapt(num_in, num_out):
        adapters = [Adapter(make(rank, num_in), make(num_out, rank))]
        adapter = join_adapters(adapters, [num_out])
        return Adapted(make(1), adapter, place_columns(adapters))

    first, second = adapt(hidden, 2 * width), adapt(width, hidden)
    assert not can_join(make(num_tokens, hidden), first, second)


@pytest.mark.parametrize("targets", [(), ("gate_proj", "down_proj"), ("up_proj", "down_proj")])
def test_a_llama_with_adapters_is_as_with_peft(targets):
    pytest.importorskip("peft")
    config = LlamaConfig(
        vocab_size=90,
        hidden_size=64,
        mlp_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_size=8,
        is_tied=True,
    )
    model = Llama(config).to(DEVICE)
    model.init_weights(seed=1)
    words = ["--model", "m", "--lora", "8"]
    words += ["--lora-targets", ",".join(targets)] if targets else []
    prepare_layers(model, read_llm_options(words, {}), say=lambda _: None)
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            if weight.requires_grad:
                weight.copy_(make(*weight.shape, seed=number) / 8)
    alone = copy.deepcopy(model)
    for layer in alone.modules():
        vars(layer).pop("joined_adapter", None)  # peft then calls its layers one by one
    tokens = torch.arange(48, device=DEVICE).view(3, 16)
    seen = []
    for one in (model, alone):
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, to=kept: to.append(x) or x, lambda x: x
        ):
            loss = one(tokens, labels=tokens.roll(-1, 1))
        loss.backward()
        gradients = [weight.grad for weight in one.parameters() if weight.requires_grad]
        seen.append((loss, gradients))
        has_gated = any(x.shape[-1] == 128 and x.numel() == 48 * 128 for x in kept)
        # the output of the gate, which the function does not keep
        assert has_gated == (one is alone)
    torch.testing.assert_close(*seen, atol=1e-4, rtol=1e-4)
