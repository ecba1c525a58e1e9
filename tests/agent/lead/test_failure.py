"""Verdicts: they blame the first failure, classify it correctly, and name the next command."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import error_infos

from windlass.agent.lead.attempt import choose_first, make_verdict
from windlass.plan.plan import Facts, make_plan
from windlass.processes import signal_name
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script
from windlass.wire.results import ErrorInfo, Outcome
from windlass.wire.status import FailureKind, make_job_verdict

PLAN = make_plan(
    JobSpec(work=Script(path="a.py"), nodes=2, procs=2),
    job_id="job-1",
    now_s=0,
    facts=Facts(environ={}),
)


def error(type_="builtins.ValueError", message="boom", file="/p/a.py", line=7):
    return ErrorInfo(type=type_, message=message, file=file, line=line, source="raise it")


def outcome(rank, state, at_s=1.0, **fields):
    return Outcome(rank=rank, attempt=0, state=state, at_s=at_s, **fields)


outcomes = st.lists(
    st.builds(
        Outcome,
        rank=st.integers(0, 3),
        attempt=st.just(0),
        state=st.sampled_from(["returned", "raised", "exited", "killed", "stopped", "lost"]),
        at_s=st.floats(0, 100),
        exit_code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 64),
        error=st.none() | error_infos,
        out_of_memory=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda o: o.rank,
)


@settings(deadline=None)
@given(outcomes)
def test_any_outcomes_have_a_verdict_exactly_when_one_failed(found):
    verdict = make_verdict(PLAN, found, attempt=0)
    failed = {o.rank for o in found if o.is_failure}
    assert (verdict is None) == (not failed)
    if verdict is not None:
        assert verdict.rank in failed
        assert verdict.node_name == PLAN.nodes[verdict.node].name
        assert verdict.rank in PLAN.nodes[verdict.node].ranks
        assert sum(verdict.others.values()) == len(found) - 1
        assert verdict.message.strip()
        assert verdict.next


@settings(deadline=None)
@given(outcomes, st.randoms())
def test_report_order_does_not_matter(found, random):
    shuffled = list(found)
    random.shuffle(shuffled)
    assert choose_first(PLAN, shuffled) == choose_first(PLAN, found)


def test_the_earliest_is_blamed():
    found = [
        outcome(0, "killed", 5.0, signal=9),
        outcome(3, "raised", 4.0, error=error()),
        outcome(1, "lost", 6.0),
    ]
    assert choose_first(PLAN, found).rank == 3


@pytest.mark.parametrize(
    "message",
    [
        "[enforce fail] Connection closed by peer [127.0.0.1]:5",
        "Connection reset by peer",
        "[Errno 32] Broken pipe",
        "recvValue failed on SocketImpl",
        "Connection refused",
    ],
)
def test_rank_that_lost_its_peer_is_blamed_last(message):
    lost_peer = outcome(
        0, "raised", 1.0, error=error("torch.distributed.DistNetworkError", message)
    )
    cause = outcome(1, "killed", 2.0, signal=9)
    assert choose_first(PLAN, [lost_peer, cause]) == cause
    assert choose_first(PLAN, [lost_peer]) == lost_peer


def test_ties_go_to_the_lowest_rank():
    assert choose_first(PLAN, [outcome(2, "killed"), outcome(1, "killed")]).rank == 1


def test_returned_and_stopped_ranks_did_not_fail():
    assert choose_first(PLAN, [outcome(0, "returned"), outcome(1, "stopped")]) is None
    assert make_verdict(PLAN, [outcome(0, "returned")], attempt=0) is None


@pytest.mark.parametrize(
    ("first", "kind", "message"),
    [
        (
            outcome(1, "raised", error=error()),
            FailureKind.USER_ERROR,
            "rank 1 on job-1-node-0 raised ValueError: boom at /p/a.py:7",
        ),
        (
            outcome(1, "raised", error=error(message="one\ntwo")),
            FailureKind.USER_ERROR,
            "rank 1 on job-1-node-0 raised ValueError: one at /p/a.py:7",
        ),
        (
            outcome(1, "raised", error=error("builtins.MemoryError", "")),
            FailureKind.OUT_OF_MEMORY,
            "rank 1 on job-1-node-0 raised MemoryError at /p/a.py:7",
        ),
        (
            outcome(1, "raised", error=error("torch.OutOfMemoryError", "CUDA out of memory")),
            FailureKind.OUT_OF_MEMORY,
            "rank 1 on job-1-node-0 raised torch.OutOfMemoryError: CUDA out of memory at /p/a.py:7",
        ),
        (
            outcome(2, "killed", signal=9, out_of_memory=True),
            FailureKind.OUT_OF_MEMORY,
            "rank 2 on job-1-node-1 was killed because the machine ran out of memory",
        ),
        (
            outcome(2, "killed", signal=11),
            FailureKind.KILLED,
            "rank 2 on job-1-node-1 was killed by SIGSEGV",
        ),
        (
            outcome(1, "exited", exit_code=3, error=error("builtins.SystemExit", "3")),
            FailureKind.USER_ERROR,
            "rank 1 on job-1-node-0 exited with code 3 at /p/a.py:7",
        ),
        (
            outcome(1, "exited", exit_code=143, error=error("a.b.Preempted", "step 7 is saved")),
            FailureKind.KILLED,
            "rank 1 on job-1-node-0 exited on SIGTERM: step 7 is saved",
        ),
        (
            outcome(1, "exited", exit_code=143, error=error("builtins.SystemExit", "143")),
            FailureKind.KILLED,
            "rank 1 on job-1-node-0 exited on SIGTERM",
        ),
        (
            outcome(1, "exited", exit_code=5),
            FailureKind.USER_ERROR,
            "rank 1 on job-1-node-0 exited with code 5",
        ),
        (
            outcome(1, "exited", exit_code=0),
            FailureKind.USER_ERROR,
            "rank 1 on job-1-node-0 exited with code 0 before its work returned (os._exit?)",
        ),
        (outcome(3, "lost"), FailureKind.LOST_NODE, "job-1-node-1 (rank 3) was lost"),
        (
            outcome(1, "exited", exit_code=1, error=ErrorInfo(type="", message="")),
            FailureKind.USER_ERROR,
            "rank 1 on job-1-node-0 exited with code 1",
        ),
    ],
    ids=lambda value: getattr(value, "state", None),
)
def test_class_and_message(first, kind, message):
    verdict = make_verdict(PLAN, [first], attempt=0)
    assert (verdict.kind, verdict.message) == (kind, message)
    assert verdict.rank == first.rank


def test_verdict_has_place_time_and_states_of_the_others():
    found = [
        outcome(0, "returned"),
        outcome(1, "stopped"),
        outcome(2, "raised", 8.0, error=error()),
    ]
    verdict = make_verdict(PLAN, found, attempt=3, running=1)
    assert (verdict.rank, verdict.node, verdict.attempt, verdict.at_s) == (2, 1, 3, 8.0)
    assert (verdict.exception, verdict.where, verdict.source) == (
        "ValueError: boom",
        "/p/a.py:7",
        "raise it",
    )
    assert verdict.others == {"returned": 1, "stopped": 1, "running": 1}
    assert verdict.next == "windlass logs job-1 --rank 2"


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("No module named 'transformers'", "python -m pip install transformers"),
        ("No module named 'a.b.c'", "python -m pip install a"),
        ("something else", "windlass logs job-1 --rank 0"),
    ],
)
def test_missing_module_suggests_its_installation(message, command):
    missing = outcome(0, "raised", error=error("builtins.ModuleNotFoundError", message))
    assert make_verdict(PLAN, [missing], attempt=0).next == command


def test_a_very_long_message_is_cut_between_words():
    verdict = make_verdict(
        PLAN, [outcome(0, "raised", error=error(message="several words " * 5_000))], attempt=0
    )
    assert len(verdict.message) < 300
    assert verdict.message.partition(" at /p")[0].endswith((" words...", " several..."))
    assert (
        len(
            make_verdict(
                PLAN, [outcome(0, "raised", error=error(message="x" * 9999))], attempt=0
            ).message
        )
        < 300
    )


PEER_GONE = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40613"


def test_loss_of_a_returned_peer_is_noted():
    lost = outcome(0, "raised", at_s=60.0, error=error(message=PEER_GONE))
    verdict = make_verdict(PLAN, [lost], attempt=0, running=1, returned={1, 2})
    assert verdict.rank == 0
    assert verdict.note.startswith("ranks 1, 2 had already returned when rank 0 lost its peer")
    assert verdict.message.endswith(verdict.note)
    with_outcome = make_verdict(PLAN, [lost, outcome(1, "returned", at_s=2.0)], attempt=0)
    assert with_outcome.note.startswith("rank 1 had already returned")
    own = make_verdict(PLAN, [outcome(0, "raised", error=error())], attempt=0, returned={1})
    assert own.note == ""  # the rank's own error, not the loss of a peer


def test_verdicts_about_the_job():
    verdict = make_job_verdict(PLAN, FailureKind.TIMEOUT, "too late", at_s=9.0, attempt=1)
    assert (verdict.rank, verdict.node, verdict.node_name) == (None, None, "")
    assert (verdict.message, verdict.at_s, verdict.next) == ("too late", 9.0, "windlass logs job-1")
    assert (
        make_job_verdict(PLAN, FailureKind.LOST_NODE, "gone", at_s=0, node=1).node_name
        == "job-1-node-1"
    )


def test_signals_have_names():
    assert (signal_name(9), signal_name(15), signal_name(99)) == ("SIGKILL", "SIGTERM", "signal 99")


def test_a_rank_that_never_started_is_not_called_killed():
    verdict = make_verdict(PLAN, [outcome(1, "exited")], attempt=0)
    assert verdict.kind.value == "start failed"
    assert "never started: its fork server died" in verdict.message
