"""What came back of a call: the answers of its ranks and how it ended, as values and exceptions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from windlass.client.jobs.load_values import load_error, make_failure
from windlass.errors import RemoteError
from windlass.wire import payloads
from windlass.wire.messages.calls import CallResult
from windlass.wire.messages.computes import CallAnswer
from windlass.wire.results import ResultHeader
from windlass.wire.states import CallState, RankState
from windlass.wire.status import Verdict

RankSaid = CallAnswer | CallResult


@dataclass(slots=True)
class Reply:
    """What came back."""

    results: dict[int, tuple[RankSaid, list[memoryview]]] = field(default_factory=dict)
    state: CallState | None = None
    verdict: Verdict | None = None

    def value(self, rank: int) -> Any:
        segments = self.results[rank][1]
        if not segments:
            return None
        try:
            return payloads.unpack(segments)
        except Exception as error:
            raise RemoteError(
                f"rank {rank} returned what cannot be rebuilt here: {type(error).__name__}: {error}",
                hint="import what it is made of here too, or return plain values",
            ) from error

    def error(self) -> BaseException | None:
        """What went wrong, of its own type where that can be rebuilt."""
        verdict = self.verdict
        if verdict is None:
            return None
        result = self.results.get(verdict.rank) if verdict.rank is not None else None
        if result is None or result[0].state != RankState.RAISED or result[0].error is None:
            return make_failure(verdict)
        said, segments = result
        about = ResultHeader(
            rank=said.rank, attempt=0, state=RankState.RAISED, at_s=said.at_s, error=said.error
        )
        error = load_error(about, b"".join(segments[:1]))
        if isinstance(error, SystemExit):  # which would end this process as well
            return make_failure(verdict)
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"windlass: {verdict.message}")
        return error


def of_call(verdict: Verdict, call_id: str) -> Verdict:
    """The verdict on a call: what to type next is said of the call, which is tried once."""
    job_id = call_id.rpartition(".")[0]
    words = [call_id if word == job_id else word for word in verdict.next.split(" ")]
    return replace(verdict, attempt=0, next=" ".join(words))
