"""Quantities in Kubernetes notation, and refusals of those that surely mean something else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import SpecError
from windlass.spec.node_resources import BILLION, check_bytes, check_cpus, halve, read_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("500m", 0.5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("2.", 2),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 1.5 * 1024**3),
        ("2T", 2e12),
        ("3E", 3 * 10**18),
    ],
)
def test_values(text, value):
    assert read_quantity(text) == value * BILLION


@given(st.integers(0, 10**6))
def test_a_thousand_milli_are_one(count):
    assert read_quantity(f"{count * 1000}m") == read_quantity(str(count))
    assert read_quantity(f"{count}.5") == read_quantity(f"{count * 1000 + 500}m")


@pytest.mark.parametrize("text", ["4", "0.5", "500m", "100"])
def test_cpus(text):
    check_cpus("--cpus", text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("four", "--cpus must be a number of CPUs, not 'four'"),
        ("4Gi", "--cpus must be a number of CPUs"),
        ("-1", "--cpus must be a number of CPUs"),
        ("1e3", "--cpus must be a number of CPUs"),
        ("4 ", "--cpus must be a number of CPUs"),
        ("0", "--cpus must be more than 0"),
    ],
)
def test_refused_cpus(text, says):
    with pytest.raises(SpecError) as caught:
        check_cpus("--cpus", text)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["512Gi", "1.5Ti", "500M", "1048576", ""])
def test_bytes(text):
    check_bytes("--memory", text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("512", "--memory 512 is less than 1 MiB"),
        ("512GB", "--memory must be an amount such as 512Gi, not '512GB'"),
        ("512 Gi", "--memory must be an amount"),
        ("500m", "--memory must be an amount"),
        ("lots", "--memory must be an amount"),
    ],
)
def test_refused_bytes(text, says):
    with pytest.raises(SpecError) as caught:
        check_bytes("--memory", text)
    assert says in caught.value.message
    assert caught.value.hint


def test_malformed_quantity_is_refused():
    with pytest.raises(SpecError, match="is not a valid quantity"):
        read_quantity("x")


@given(st.integers(2, 10**6))
def test_half(count):
    assert read_quantity(halve(f"{count}Gi")) * 2 == read_quantity(f"{count}Gi")


def test_half_is_never_zero():
    assert halve("1Mi") == "1Mi"
