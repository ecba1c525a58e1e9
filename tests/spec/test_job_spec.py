"""JobSpec, which refuses impossible settings on creation."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import specs

from windlass.errors import SpecError
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script

WORK = Script(path="train.py")


def test_defaults():
    spec = JobSpec(work=WORK)
    assert (spec.nodes, spec.procs, spec.restarts, spec.start) == (1, 1, 0, "fork")
    assert (spec.engine, spec.timeout_s, spec.detach) == ("local", None, False)


@pytest.mark.parametrize(
    ("wrong", "says", "hint"),
    [
        ({"nodes": 0}, "--nodes must be at least 1, not 0", "omit --nodes"),
        ({"procs": -2}, "--procs must be at least 1, not -2", "omit --procs"),
        ({"restarts": -1}, "--restarts must be at least 0, not -1", ""),
        ({"timeout_s": 0}, "--timeout must be more than 0, not 0", "no limit"),
        ({"timeout_s": -1.5}, "--timeout must be more than 0, not -1.5", "no limit"),
        ({"timeout_s": math.nan}, "--timeout must be more than 0, not nan", "no limit"),
        ({"grace_s": -1}, "grace_s must be at least 0", ""),
        ({"lease_s": math.nan}, "lease_s must be at least 0", ""),
        ({"join_timeout_s": -0.1}, "join_timeout_s must be at least 0", ""),
        ({"start": "forkserver"}, "--start must be one of fork, spawn, not 'forkserver'", "spawn"),
        ({"env": {"": "x"}}, "invalid environment variable name ''", "NAME=VALUE"),
        ({"env": {"A-B": "x"}}, "invalid environment variable name 'A-B'", "NAME=VALUE"),
        ({"env": {"1A": "x"}}, "invalid environment variable name '1A'", "NAME=VALUE"),
        ({"env": {"A=B": "x"}}, "invalid environment variable name 'A=B'", "NAME=VALUE"),
        ({"env": {"A\n": "x"}}, "invalid environment variable name", "NAME=VALUE"),
        ({"env": {"A": "x\0y"}}, "the value of A contains a NUL", ""),
    ],
    ids=str,
)
def test_refused(wrong, says, hint):
    with pytest.raises(SpecError) as caught:
        JobSpec(work=WORK, **wrong)
    assert says in caught.value.message
    assert hint in caught.value.hint


@settings(deadline=None)
@given(specs, st.integers(max_value=0))
def test_replace_cannot_make_an_invalid_spec(spec, count):
    for name in ("nodes", "procs"):
        with pytest.raises(SpecError):
            dataclasses.replace(spec, **{name: count})


def test_spec_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        JobSpec(work=WORK).nodes = 3
