"""Logs and results that nodes still have to send after the ranks of a job have ended.

Asks the nodes for them, waits while data arrives, and reports missing results.
"""

from __future__ import annotations

from windlass import names
from windlass.agent.lead.attempt import Attempt
from windlass.agent.lead.changes import Changes
from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import FilesFlushed, FlushFiles
from windlass.wire.messages.link import FilePiece

_STALL_S = 60.0  # how long nodes may send nothing


class OwedResults:
    """Nodes that were asked for the files of their ranks, and those that have sent all of them."""

    def __init__(self, nodes: NodeTable, changed: Changes, status_writer: StatusWriter) -> None:
        self._nodes = nodes
        self._changed = changed
        self._status_writer = status_writer
        self._asked: dict[int, JoinedNode] = {}
        self._flushed: set[int] = set()
        self._num_pieces = 0  # of files that nodes have sent
        self.handlers: Handlers = {FilesFlushed: self._take_flushed, FilePiece: self._count_piece}

    async def collect(self, attempt: Attempt, *, is_complete: bool) -> None:
        """Wait for the remaining files while data arrives.

        If all ranks have returned (`is_complete`), also wait for lost nodes that have not sent a result.
        """
        owing: set[int] = set()

        def is_over() -> bool:
            self._ask_joined()
            gone = {index for index in self._find_owing(attempt) if index not in self._nodes}
            owing.update(gone if is_complete else ())
            return self._flushed.issuperset(self._nodes.here()) and not (is_complete and gone)

        num_pieces = -1
        while num_pieces != self._num_pieces:
            num_pieces = self._num_pieces
            if await self._changed.until(is_over, timeout_s=_STALL_S):
                break
        owing.update(set(self._nodes.here()) - self._flushed)
        self._report_missing({i: r for i, r in self._find_owing(attempt).items() if i in owing})

    def _ask_joined(self) -> None:
        for index in self._nodes.here():  # including nodes that have just come back
            if self._asked.get(index) is not self._nodes[index]:
                self._asked[index] = self._nodes[index]
                self._flushed.discard(index)
                self._nodes.order(index, FlushFiles())

    def _find_owing(self, attempt: Attempt) -> dict[int, list[int]]:
        return find_owing(attempt, self._status_writer.folder)

    def _report_missing(self, owing: dict[int, list[int]]) -> None:
        for index, ranks in owing.items():
            why = f"sent nothing more for {_STALL_S:g} s" if index in self._nodes else "was lost"
            message = render_missing(self._nodes.plan.nodes[index].name, ranks, why)
            self._status_writer.add_condition("warning", names.REASON_RESULT_MISSING, message)

    def _take_flushed(self, index: int, _message: FilesFlushed, _body: bytes) -> None:
        self._flushed.add(index)

    def _count_piece(self, _index: int, _message: FilePiece, _body: bytes) -> None:
        self._num_pieces += 1


def find_owing(attempt: Attempt, folder: JobFolder) -> dict[int, list[int]]:
    """Return the ranks of an attempt whose results are missing, by node."""
    if not isinstance(attempt.world.work, Function) or attempt.number < 0:
        return {}
    missing = {
        node.index: [r for r in node.ranks if not folder.result(attempt.number, r).exists()]
        for node in attempt.world.nodes
    }
    return {index: ranks for index, ranks in missing.items() if ranks}


def render_missing(node: str, ranks: list[int], why: str) -> str:
    """Return the message about missing results of a node."""
    which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"the result of {which} is missing: {node} {why} before sending it"
