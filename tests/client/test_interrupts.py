"""Ctrl-C while a job is started and followed: the job ends, whenever it came."""

from __future__ import annotations

import os
import signal

import pytest
import rank_work

import windlass as wl
from windlass.client.interrupts import Interrupts
from windlass.wire.status import Phase


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_one_that_comes_before_there_is_a_job_ends_it_once_it_is_there():
    with Interrupts() as interrupts:
        interrupt()
        job = wl.submit(rank_work.hang)
        interrupts.watch(job)
        status = job.wait(60)
    assert status.phase is Phase.CANCELLED
    assert status.verdict.message == "Ctrl-C in its client"
    assert interrupts.to_show == []


def test_a_second_one_ends_a_start_that_takes_too_long():
    with Interrupts():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_those_that_come_later_are_to_be_shown_and_the_second_kills():
    with Interrupts() as interrupts:
        job = wl.submit(rank_work.hang, grace_s=600)
        interrupts.watch(job)
        interrupt(signal.SIGTERM)
        interrupt()
        status = job.wait(60)
    assert interrupts.to_show == [False, True]
    assert status.verdict.message == "SIGTERM in its client"


def test_signals_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
