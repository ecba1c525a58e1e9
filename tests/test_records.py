"""Records. Everything written can be read, and unreadable input raises ProtocolError."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import error_infos, job_statuses, plain_json, plans, result_headers, specs

from windlass import records
from windlass.errors import ProtocolError
from windlass.plan.plan import Plan
from windlass.spec.job_spec import JobSpec
from windlass.wire.results import ErrorInfo, Outcome, ResultHeader
from windlass.wire.status import JobStatus, Phase, Progress, Verdict


@settings(deadline=None)
@given(
    st.one_of(
        st.tuples(st.just(JobSpec), specs),
        st.tuples(st.just(Plan), plans()),
        st.tuples(st.just(JobStatus), job_statuses),
        st.tuples(st.just(ResultHeader), result_headers),
        st.tuples(st.just(ErrorInfo), error_infos),
    )
)
def test_round_trip_through_json_text(made):
    cls, record = made
    text = json.dumps(records.to_json(record), allow_nan=False)
    assert records.read(cls, json.loads(text)) == record


@settings(deadline=None)
@given(st.sampled_from([JobSpec, Plan, JobStatus, ResultHeader, Outcome, Verdict]), plain_json)
def test_garbage_is_refused_and_nothing_else_is_raised(cls, data):
    with pytest.raises(ProtocolError, match=f"cannot read {cls.__name__}") as caught:
        records.read(cls, data)
    assert "version" in caught.value.hint


GOOD = {"job_id": "j", "name": "n", "engine": "local", "work": "w"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": "nonsense"},
        {"attempt": "1"},
        {"attempt": None},
        {"detach": "yes"},
        {"created_at_s": "soon"},
        {"created_at_s": 10**400},
        {"created_at_s": None},
        {"conditions": 3},
        {"conditions": "text"},
        {"conditions": {"a": 1}},
        {"conditions": [1]},
        {"progress": []},
        {"progress": "step"},
        {"progress": {"metrics": [1]}},
        {"verdict": 5},
        {"name": 1},
        {"verdict": {"kind": "user error"}},
    ],
    ids=str,
)
def test_a_wrong_field_is_refused(wrong):
    assert records.read(JobStatus, GOOD).phase is Phase.PENDING
    with pytest.raises(ProtocolError, match="cannot read JobStatus"):
        records.read(JobStatus, {**GOOD, **wrong})


def test_a_missing_field_is_named():
    with pytest.raises(ProtocolError, match="job_id"):
        records.read(JobStatus, {key: GOOD[key] for key in ("name", "engine", "work")})


def test_a_text_is_not_a_list_of_texts():
    with pytest.raises(ProtocolError, match="expected a list, found 'abc'"):
        records.read(JobSpec, {"work": {"kind": "script", "path": "a.py"}, "paths": "abc"})


def test_the_field_that_is_refused_is_named_with_the_records_around_it():
    with pytest.raises(
        ProtocolError, match=r"cannot read JobStatus: progress\.step: expected a whole"
    ):
        records.read(JobStatus, {**GOOD, "progress": {"step": "x"}})


def test_values_without_a_json_form_are_refused():
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        records.to_json({"a": [object()]})


def test_keys_of_a_newer_writer_are_ignored():
    data = {**GOOD, "color": "blue", "progress": {"step": 3, "mood": "fine"}}
    assert records.read(JobStatus, data).progress == Progress(step=3)


@dataclass(frozen=True, kw_only=True)
class _Odd:
    number: float
    names: frozenset[str] = frozenset()
    table: dict[str, tuple[int, ...]] = field(default_factory=dict)


def test_nan_and_infinity_round_trip_as_text():
    for number in (math.inf, -math.inf):
        data = records.to_json(_Odd(number=number))
        json.dumps(data, allow_nan=False)
        assert records.read(_Odd, data).number == number
    assert math.isnan(records.read(_Odd, records.to_json(_Odd(number=math.nan))).number)


def test_sets_and_tables_of_tuples():
    odd = _Odd(number=1.0, names=frozenset({"a", "b"}), table={"x": (1, 2)})
    data = json.loads(json.dumps(records.to_json(odd)))
    assert sorted(data["names"]) == ["a", "b"]
    assert records.read(_Odd, data) == odd
