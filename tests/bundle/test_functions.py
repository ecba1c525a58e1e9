from __future__ import annotations

import enum
import functools
import json
import os
import pickle
import types
from collections import OrderedDict

import cloudpickle
import numpy
import pytest

from windlass.bundle.functions import by_value, read_contents
from windlass.errors import BundleError


class Color(enum.Enum):
    RED = 1


def make_inner() -> object:
    class Model:
        def forward(self) -> object:
            return numpy.zeros(1), os.path.sep

    def inner(model: Model) -> object:
        return model.forward(), Color.RED

    return inner, Model


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_function_of_a_module_is_sent_by_reference(protocol: int) -> None:
    contents = read_contents(cloudpickle.dumps(json.dumps, protocol=protocol))
    assert not contents.by_value
    assert contents.value_names == ()
    assert contents.modules == ("json",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_local_function_is_sent_by_value(protocol: int) -> None:
    contents = read_contents(cloudpickle.dumps(make_inner(), protocol=protocol))
    assert contents.by_value
    assert {name.rpartition(".")[2] for name in contents.value_names} == {
        "inner",
        "Model",
        "forward",
    }
    assert {"numpy", "os", __name__} <= set(contents.modules)
    assert "cloudpickle.cloudpickle" not in contents.modules
    assert "builtins" not in contents.modules


def test_lambda_is_sent_by_value() -> None:
    assert by_value(cloudpickle.dumps(lambda: 1))


def test_module_created_in_code_is_sent_by_value() -> None:
    module = types.ModuleType("made_by_hand")
    assert by_value(cloudpickle.dumps(module))


def test_code_object_is_sent_by_value() -> None:
    contents = read_contents(cloudpickle.dumps(make_inner.__code__))
    assert contents.by_value
    assert "make_inner" in contents.value_names


@pytest.mark.parametrize(
    "value", [1, "cloudpickle.cloudpickle", [b"x"], types.CodeType, OrderedDict(a=1)]
)
def test_plain_values_hold_no_code(value: object) -> None:
    assert not by_value(cloudpickle.dumps(value))


def test_text_like_a_reference_is_not_one() -> None:
    assert read_contents(pickle.dumps(("cloudpickle.cloudpickle", "_make_function"))).modules == ()


def test_partials_are_inspected() -> None:
    contents = read_contents(cloudpickle.dumps(functools.partial(json.dumps, indent=1)))
    assert not contents.by_value
    assert contents.modules == ("functools", "json")
    assert by_value(cloudpickle.dumps(functools.partial(lambda x: x, 1)))


def test_large_array_is_skipped() -> None:
    contents = read_contents(pickle.dumps({"w": numpy.ones(100_000)}, protocol=5))
    assert not contents.by_value
    assert any(module.startswith("numpy") for module in contents.modules)


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


def test_inspection_executes_nothing() -> None:
    assert read_contents(pickle.dumps(Trap())).modules == (os._exit.__module__,)


@pytest.mark.parametrize(
    "payload", [b"", b"nonsense", b"\x80\x05R.", b"\x80\x05h\x07.", b"\x80\x05t."]
)
def test_malformed_pickle_is_reported(payload: bytes) -> None:
    with pytest.raises(BundleError, match="not a readable pickle"):
        read_contents(payload)
