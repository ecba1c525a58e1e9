"""Payloads: values in segments, with large memory outside the pickle."""

from __future__ import annotations

import pickle

import numpy
import pytest
import torch

from windlass.errors import BundleError
from windlass.wire import payloads


def round_trip(value):
    segments = payloads.pack(value, name="value")
    body = b"".join(bytes(segment) for segment in segments)
    return payloads.unpack(payloads.cut(bytearray(body), [len(segment) for segment in segments]))


def test_small_values_are_one_segment():
    assert len(payloads.pack({"a": numpy.arange(3)}, name="value")) == 1


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(100_000),
        numpy.arange(100_000).reshape(100, 1000).T,
        numpy.arange(100_000)[::2],
        numpy.zeros((0, 5)),
        numpy.array(["text"] * 20_000),
    ],
    ids=["plain", "transposed", "gaps", "empty", "text"],
)
def test_arrays(array):
    found = round_trip([array])[0]
    assert found.dtype == array.dtype
    numpy.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(100_000),
        torch.arange(100_000.0, requires_grad=True),
        torch.arange(100_000).reshape(100, 1000).t(),
        torch.zeros(50_000, dtype=torch.bfloat16),
        torch.zeros(50_000, dtype=torch.bool),
        torch.tensor(3),
        torch.zeros(0),
        torch.zeros(50_000, dtype=torch.complex64).conj(),
        torch.eye(300).to_sparse(),
    ],
    ids=["plain", "grad", "transposed", "bf16", "bool", "scalar", "empty", "conj", "sparse"],
)
def test_tensors(tensor):
    found = round_trip({"t": tensor})["t"]
    assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert found.requires_grad == tensor.requires_grad
    assert torch.equal(found.to_dense(), tensor.to_dense())


def test_parameter_stays_a_parameter():
    found = round_trip(torch.nn.Linear(200, 200))
    assert isinstance(found.weight, torch.nn.Parameter)


def test_large_memory_is_outside_the_pickle():
    array = numpy.zeros(1 << 20, dtype=numpy.uint8)
    segments = payloads.pack((array, torch.from_numpy(array)), name="value")
    assert len(bytes(segments[0])) < 2000
    assert sum(len(segment) for segment in segments[1:]) == 2 << 20


def test_loaded_values_are_writable_and_the_file_is_unchanged(tmp_path):
    segments = payloads.pack(numpy.zeros(1 << 20, dtype=numpy.uint8), name="value")
    path = payloads.write_file(str(tmp_path), segments)
    sizes = [len(segment) for segment in segments]
    for _ in range(2):
        found = payloads.unpack(payloads.cut(payloads.map_file(path), sizes))
        assert found.sum() == 0
        found[:] = 1


def test_a_file_is_for_its_owner_only(tmp_path):
    path = payloads.write_file(str(tmp_path), [b"x"])
    assert (tmp_path / path).stat().st_mode & 0o777 == 0o600


def test_empty_file_is_refused(tmp_path):
    assert bytes(payloads.map_file(payloads.write_file(str(tmp_path), []))) == b""


def test_values_that_cannot_be_pickled_are_named():
    with pytest.raises(BundleError, match="generator"):
        payloads.pack({"a": list("ab"), "b": (x for x in "ab")}, name="value")


def test_plain_pickle_reads_the_first_segment_of_small_values():
    assert pickle.loads(payloads.pack([1, "a"], name="value")[0]) == [1, "a"]
