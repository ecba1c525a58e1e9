"""Tensors of every kind in both formats: one pickle, as for results of jobs, and segments, as for calls.

Both give equal tensors. The devices are `meta`, and a GPU if there is one.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch

from windlass.wire import payloads, pickling

GPU = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU here"),
)
LARGE = 100_000  # number of elements, large enough for a separate buffer


def in_one_pickle(value):
    return pickle.loads(pickling.dump(value, name="value"))


def in_segments(value):
    segments = payloads.pack(value, name="value")
    body = b"".join(bytes(segment) for segment in segments)
    return payloads.unpack(payloads.cut(bytearray(body), [len(segment) for segment in segments]))


@pytest.fixture(params=[in_one_pickle, in_segments])
def round_trip(request):
    return request.param


class Marked(torch.Tensor):
    """Subclass that torch's functions preserve."""


class Unmarked(torch.Tensor):
    """Subclass for which torch's functions return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def with_attribute(tensor):
    tensor.note = {"unit": "m"}
    return tensor


def parameter_of_a_subclass(size):
    return torch.nn.Parameter(torch.ones(size).as_subclass(Marked))


KINDS = {
    "small": lambda: torch.arange(3.0),
    "large": lambda: torch.arange(LARGE),
    "scalar": lambda: torch.tensor(3),
    "empty": lambda: torch.zeros(0, 3),
    "grad": lambda: torch.arange(float(LARGE), requires_grad=True),
    "small-grad": lambda: torch.arange(3.0, requires_grad=True),
    "computed": lambda: torch.arange(float(LARGE), requires_grad=True) * 2,
    "transposed": lambda: torch.arange(LARGE).reshape(100, -1).t(),
    "gaps": lambda: torch.arange(LARGE)[::2],
    "expanded": lambda: torch.ones(1).expand(LARGE),
    "part": lambda: torch.arange(LARGE)[2:5],
    "empty-part": lambda: torch.arange(LARGE)[2:2],
    "bf16": lambda: torch.ones(LARGE, dtype=torch.bfloat16),
    "bool": lambda: torch.ones(LARGE, dtype=torch.bool),
    "conj": lambda: torch.full((LARGE,), 1 + 2j).conj(),
    "neg": lambda: torch.full((LARGE,), 1 + 2j).conj().imag,
    "sparse": lambda: torch.eye(300).to_sparse(),
    "csr": lambda: torch.eye(300).to_sparse_csr(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(LARGE)),
    "frozen-parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "buffer": lambda: torch.nn.Buffer(torch.ones(LARGE), persistent=False),
    "attribute": lambda: with_attribute(torch.ones(3)),
    "large-attribute": lambda: with_attribute(torch.ones(LARGE)),
    "subclass": lambda: with_attribute(torch.ones(LARGE).as_subclass(Marked)),
    "subclass-grad": lambda: torch.ones(3).as_subclass(Unmarked).requires_grad_(True),
    "subclass-parameter": lambda: parameter_of_a_subclass(LARGE),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_is_on_the_cpu_and_otherwise_unchanged(kind, device, round_trip):
    made = KINDS[kind]()
    tensor = make_on(device, made)
    [back] = round_trip([tensor])
    assert back.device.type == "cpu"
    assert (type(back), back.dtype, back.shape) == (type(made), made.dtype, made.shape)
    assert (back.layout, back.requires_grad) == (made.layout, made.requires_grad)
    assert vars(back) == vars(made)
    assert isinstance(back, torch.nn.Parameter) == isinstance(made, torch.nn.Parameter)
    assert torch.equal(back.detach().to_dense(), made.detach().to_dense())
    if device == "cpu":
        assert back.layout is not torch.strided or back.stride() == made.stride()


def make_on(device, made):
    if device == "cpu":
        return made
    tensor = made.detach().to(device)
    if isinstance(made, torch.nn.Parameter) and type(made) is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=made.requires_grad)
    if type(tensor) is not type(made):
        tensor = tensor.as_subclass(type(made))
    tensor.requires_grad_(made.requires_grad)
    vars(tensor).update(vars(made))
    return tensor


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_tensors(device, round_trip):
    tensor = torch.quantize_per_tensor(torch.arange(float(LARGE)), 0.5, 1, torch.quint8)
    [back] = round_trip([tensor.to(device)])
    assert (back.device.type, back.is_quantized, back.q_scale()) == ("cpu", True, 0.5)
    assert torch.equal(back.dequantize(), tensor.dequantize())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(round_trip):
    parts = [torch.ones(LARGE), torch.zeros(3)]
    back = round_trip(torch.nested.nested_tensor(parts))
    assert [torch.equal(one, part) for one, part in zip(back.unbind(), parts, strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "kind",
    [
        lambda: torch.empty(LARGE, device="meta", requires_grad=True),
        lambda: torch.nn.Parameter(torch.empty(LARGE, device="meta")),
        lambda: torch.empty(LARGE, device="meta").as_subclass(Marked).requires_grad_(True),
    ],
    ids=["plain", "parameter", "subclass"],
)
def test_tensors_without_memory_stay_so(kind, round_trip):
    made = kind()
    back = round_trip(made)
    assert (back.device.type, type(back), back.shape) == ("meta", type(made), made.shape)
    assert back.requires_grad


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_uninitialized_parameters(round_trip):
    assert isinstance(
        round_trip(torch.nn.LazyLinear(3)).weight, torch.nn.parameter.UninitializedParameter
    )


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_slice_is_sent_without_the_rest(device):
    part = torch.zeros(1 << 20, device=device)[:3]
    assert len(pickling.dump(part, name="value")) < 2000
    assert sum(len(segment) for segment in payloads.pack(part, name="value")) < 2000


def test_loaded_tensors_are_writable(round_trip):
    back = round_trip(torch.zeros(LARGE))
    back += 1
    assert back.sum() == LARGE


def test_shared_tensor_stays_shared(round_trip):
    tensor = torch.zeros(LARGE)
    first, second = round_trip([tensor, tensor])
    assert first is second


@pytest.mark.parametrize("way", ["pickling.dump(t, name='t')", "payloads.pack(t, name='t')[0]"])
def test_large_tensors_are_sent_without_numpy(way):
    code = (
        "import sys; sys.modules['numpy'] = None; import pickle, torch, warnings; "
        "from windlass.wire import payloads, pickling; t = torch.arange(100_000); "
        f"print(torch.equal(pickle.loads({way}), t))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "True", answer.stderr
