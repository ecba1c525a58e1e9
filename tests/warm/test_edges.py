"""Mistakes and unusual endings: what is refused, with which message, and that later calls still work."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"memory": "1 gigabyte"}, "memory must be an amount such as 512Gi"),
        ({"cpus": "two"}, "cpus must be a number of CPUs"),
        ({"env": ["A=1"]}, "env must be a dict"),
        ({"secrets": "hf"}, "secrets must be a list"),
        ({"gpus": -1}, "gpus must be 0 or more"),
        ({"workers": 3}, r"distribute\(workers=3\)"),
        ({"memori": "1Gi"}, "did you mean 'memory'"),
        ({"working_dir": 3}, "working_dir must be text"),
    ],
)
def test_wrong_values_are_refused_when_they_are_given(given, words):
    with pytest.raises(kt.SpecError, match=words):
        kt.Compute(engine="local", **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": "all"}, "invalid ranks"),
        ({"ranks": []}, "invalid ranks"),
        ({"timeout": "soon"}, "invalid duration"),
        ({"timeout": 0}, "greater than 0"),
        ({"collect": "some"}, "invalid collect 'some'"),
    ],
)
def test_wrong_options_of_a_call_are_refused_before_it_is_made(warm, given, words):
    with pytest.raises(kt.SpecError, match=words):
        kt.fn(tasks.echo).to(warm).options(**given)


def test_misspelled_options_and_wrong_kinds_are_named():
    with pytest.raises(kt.SpecError, match="did you mean 'keep'"):
        kt.fn(tasks.echo, kep="process")
    with pytest.raises(kt.SpecError, match="cls takes a class"):
        kt.cls(tasks.echo)


@pytest.mark.parametrize(("code", "seen"), [(3, 3), ("bye", 1)])
def test_exit_is_reported_with_its_code(warm, code, seen, capfd):
    with pytest.raises(kt.RankFailed, match=f"exited with code {seen}"):
        kt.fn(tasks.leave_with).to(warm)(code)
    if isinstance(code, str):
        assert code in capfd.readouterr().err
    assert kt.fn(tasks.leave_with).to(warm)(0) is None


def test_stream_needs_a_generator(warm):
    with pytest.raises(TypeError, match="requires a generator"):
        list(kt.fn(tasks.echo).to(warm)(1, stream=True))


def test_cancelled_acall_cancels_the_call(on, warm):
    remote = kt.fn(tasks.sleep).to(warm)

    async def give_up():
        await asyncio.wait_for(remote.acall(600), 1)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(give_up())
    wait_for(
        lambda: on.info(warm)["calls"][-1]["state"] == "cancelled", "the call is cancelled", 30
    )
    assert kt.fn(tasks.echo).to(warm)(1) == ((1,), {})


def test_time_limit_includes_the_queue_time(on, warm):
    first = kt.fn(tasks.sleep).to(warm).submit(600)
    try:
        with pytest.raises(kt.JobTimeout, match="time limit of 1 s"):
            kt.fn(tasks.echo).to(warm)(1, timeout=1)
    finally:
        first.cancel()
    assert kt.fn(tasks.echo).to(warm)(1) == ((1,), {})


def test_attributes_cannot_be_set_on_a_remote(warm):
    with pytest.raises(AttributeError, match="lives on its ranks"):
        kt.fn(tasks.echo).to(warm).value = 1


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        ("no-such-command", FileNotFoundError, "command 'no-such-command' not found"),
        ("false", subprocess.CalledProcessError, "returned non-zero exit status 1"),
    ],
)
def test_failed_command_is_reported_without_a_traceback(warm, capfd, command, error, said):
    with pytest.raises(error):
        kt.fn(command).to(warm)()
    shown = capfd.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_a_command_with_an_open_quote_is_refused():
    with pytest.raises(kt.SpecError, match="quotation"):
        kt.fn('echo "a')
