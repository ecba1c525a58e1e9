"""Loaded results: values unchanged, exceptions with their type, and others named."""

from __future__ import annotations

import pickle
import traceback

import cloudpickle
import pytest

from windlass import errors
from windlass.client.jobs.job import load_error, load_value, make_failure
from windlass.wire.results import ErrorInfo, ResultHeader
from windlass.wire.status import FailureKind, Verdict


def returned(text="42"):
    return ResultHeader(rank=3, attempt=0, state="returned", at_s=0, repr=text)


def raised(type_="builtins.ValueError", message="boom"):
    error = ErrorInfo(type=type_, message=message, traceback="Traceback:\n  the remote lines\n")
    return ResultHeader(rank=3, attempt=0, state="raised", at_s=0, error=error)


def test_value_round_trips():
    assert load_value(returned(), pickle.dumps({"a": 1})) == {"a": 1}


@pytest.mark.parametrize("payload", [b"", b"garbage", b"cno_such_module\nThing\n."])
def test_a_value_that_cannot_be_rebuilt_is_named(payload):
    with pytest.raises(
        errors.RemoteError, match=r"rank 3 returned <Thing>, which cannot be unpickled"
    ) as caught:
        load_value(returned("<Thing>"), payload)
    assert "make its modules importable" in caught.value.hint


def test_an_exception_keeps_its_type_and_brings_its_traceback():
    error = load_error(raised(), pickle.dumps(ValueError("boom")))
    assert type(error) is ValueError
    assert error.args == ("boom",)
    text = "".join(traceback.format_exception(error))
    assert "rank 3:" in text
    assert "the remote lines" in text


def test_windlass_error_keeps_its_hint():
    header = raised("windlass.errors.BundleError", "it cannot travel\n  hint: leave it at home")
    error = load_error(header, b"")
    assert type(error) is errors.BundleError
    assert (error.message, error.hint) == ("it cannot travel", "leave it at home")


def test_name_in_errors_that_is_not_a_class_is_not_called():
    error = load_error(raised("windlass.errors.annotations", "x"), pickle.dumps(ValueError("boom")))
    assert type(error) is ValueError


class Awkward(Exception):
    def __init__(self, one, two):
        super().__init__(one)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "it could not be pickled"),
        (b"garbage", "UnpicklingError"),
        (pickle.dumps(Awkward(1, 2)), "TypeError"),
        (b"cno_such_module\nThing\n.", "ModuleNotFoundError"),
    ],
    ids=["none", "garbage", "awkward", "missing"],
)
def test_an_exception_that_cannot_be_rebuilt_is_named(payload, why):
    error = load_error(raised("their.Thing", "what it said"), payload)
    assert type(error) is errors.RemoteError
    assert error.message.startswith("their.Thing: what it said (not unpickled here: ")
    assert why in error.message
    assert "the remote lines" in str(error.__cause__)


def test_value_that_is_not_an_exception_is_not_raised():
    error = load_error(raised(message="boom"), pickle.dumps(5))
    assert type(error) is errors.RemoteError
    assert error.message == "ValueError: boom"


def test_class_defined_in_the_rank_round_trips():
    class Local(Exception):
        pass

    error = load_error(raised(), cloudpickle.dumps(Local("x")))
    assert type(error).__name__ == "Local"


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        (FailureKind.USER_ERROR, errors.RankFailed),
        (FailureKind.KILLED, errors.RankFailed),
        (FailureKind.OUT_OF_MEMORY, errors.RankFailed),
        (FailureKind.LOST_NODE, errors.NodeLost),
        (FailureKind.TIMEOUT, errors.JobTimeout),
        (FailureKind.CANCELLED, errors.JobCancelled),
        (FailureKind.START_FAILED, errors.EngineError),
    ],
)
def test_a_verdict_without_an_exception_is_an_error_of_its_kind(kind, cls):
    error = make_failure(Verdict(kind=kind, message="what happened", next="windlass logs j"))
    assert type(error) is cls
    assert (error.message, error.hint) == ("what happened", "windlass logs j")
