"""Errors. Each has a hint and a place in the hierarchy, and survives pickling."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from windlass import errors, names

ALL = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.WindlassError)
]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_pickle_keeps_type_message_hint_and_more(cls):
    error = cls("went wrong", hint="do this")
    error.extra = {"rank": 3}
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert (again.message, again.hint, again.extra) == ("went wrong", "do this", {"rank": 3})
        assert str(again) == "went wrong\n  hint: do this"
        assert again.args == ("went wrong",)


def test_without_a_hint_the_message_stands_alone():
    assert str(errors.EngineError("went wrong")) == "went wrong"


def test_pickle_of_a_subclass_with_an_init_of_its_own():
    error = pickle.loads(pickle.dumps(Special(7)))
    assert (type(error), error.code, error.hint) == (Special, 7, "count again")


class Special(errors.JobError):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}", hint="count again")
        self.code = code


@pytest.mark.parametrize(
    ("cls", "parent", "exit_code"),
    [
        (errors.SpecError, errors.WindlassError, names.EXIT_USAGE),
        (errors.BundleError, errors.SpecError, names.EXIT_USAGE),
        (errors.JobError, errors.WindlassError, names.EXIT_JOB_FAILED),
        (errors.RankFailed, errors.JobError, names.EXIT_JOB_FAILED),
        (errors.RemoteError, errors.JobError, names.EXIT_JOB_FAILED),
        (errors.JobTimeout, errors.JobError, names.EXIT_JOB_FAILED),
        (errors.JobCancelled, errors.JobError, names.EXIT_JOB_FAILED),
        (errors.StepFailed, errors.JobError, names.EXIT_JOB_FAILED),
        (errors.NodeLost, errors.WindlassError, names.EXIT_JOB_FAILED),
        (errors.EngineError, errors.WindlassError, names.EXIT_ENGINE),
        (errors.JobNotFound, errors.EngineError, names.EXIT_USAGE),
        (errors.WaitTimeout, errors.EngineError, names.EXIT_ENGINE),
        (errors.EngineMissing, errors.EngineError, names.EXIT_ENGINE),
        (errors.KeysReplaced, errors.EngineError, names.EXIT_ENGINE),
        (errors.ProtocolError, errors.EngineError, names.EXIT_ENGINE),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_hierarchy(cls, parent, exit_code):
    assert cls.__bases__ == (parent,)
    assert cls.exit_code == exit_code
    assert cls.__name__ in (errors.__doc__ or "")
    assert set(ALL) == {errors.WindlassError, *_known()}


def _known():
    mark = test_hierarchy.pytestmark[0]
    return {case[0] for case in mark.args[1]}


def test_errors_that_may_be_retried():
    assert {cls.__name__ for cls in ALL if cls.retryable} == {"NodeLost", "WaitTimeout"}
