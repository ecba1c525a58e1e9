"""The nodes of a framework's cluster beyond node 0: each joins what node 0 has opened, and does so again.

A node whose process was lost is told to join once more, and so is whoever comes in the place of a lost node.
One whose process cannot start is not: why is kept, for those that wait. What node 0 has, and when a cluster
is opened and closed, is `agent.lead.rendezvous`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from windlass import names
from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.wire.messages.worlds import CloseStore, OpenStore, StoreReady


@dataclass(slots=True)
class _Member:
    node: JoinedNode  # the agent that was told
    is_ready: bool = False
    address: str = ""
    error: str = ""


class ClusterNodes:
    """Who was told to join a cluster, and what came of it. `make_order` makes the order for a node."""

    def __init__(
        self,
        nodes: NodeTable,
        status_writer: StatusWriter,
        make_order: Callable[[int], OpenStore],
        indexes: Iterable[int],
    ) -> None:
        self._nodes = nodes
        self._status_writer = status_writer
        self._make_order = make_order
        self._wanted = set(indexes)
        self._members: dict[int, _Member] = {}
        self._lost: set[int] = set()  # those that had been there

    def want(self, indexes: Iterable[int]) -> None:
        """These take part, too; and those that could not start may try again."""
        self._wanted.update(indexes)
        for index in [index for index, one in self._members.items() if one.error]:
            del self._members[index]
        self.check()

    def check(self) -> None:
        """Tell every node that takes part and has not been told."""
        for index in self._wanted:
            node = self._nodes.get(index)
            member = self._members.get(index)
            is_told = member is not None and member.node is node
            if node is not None and node.is_prepared and not is_told:
                self._members[index] = _Member(node)
                node.send(self._make_order(index), b"")

    def is_settled(self, indexes: Iterable[int]) -> bool:
        """Whether each of these is there, or has said why it cannot be; lost nodes are not waited for."""
        return all(self._is_settled(index) for index in indexes)

    def _is_settled(self, index: int) -> bool:
        member, node = self._members.get(index), self._nodes.get(index)
        if node is None:
            return True
        return (
            member is not None and member.node is node and (member.is_ready or bool(member.error))
        )

    def find_error(self) -> tuple[int, str]:
        """A node that could not start, and why; -1 where there is none."""
        for index, member in sorted(self._members.items()):
            if member.error:
                return index, member.error
        return -1, ""

    def take_ready(self, index: int, message: StoreReady) -> None:
        member = self._members.get(index)
        if member is not None:
            member.is_ready, member.error = not message.error, message.error
            member.address = message.address
            if message.error and index in self._lost:  # nobody waits for it any more
                text = f"{self._nodes.name(index)} is missing: {message.error}"
                self._status_writer.add_condition("warning", names.REASON_CLUSTER_NODE_LOST, text)

    @property
    def addresses(self) -> list[str]:
        """Where those are that are there, in the order of nodes."""
        return [one.address for _, one in sorted(self._members.items()) if one.is_ready]

    def lose(self, index: int, what: str) -> None:
        """A node's process is gone: it is started again, if it had been there at all."""
        member = self._members.get(index)
        if member is not None and member.is_ready:
            del self._members[index]
            self._lost.add(index)
            message = f"{what} on {self._nodes.name(index)} was lost, and is started again"
            self._status_writer.add_condition("warning", names.REASON_CLUSTER_NODE_LOST, message)
            self.check()

    def close(self, number: int) -> None:
        """The cluster is given up; nobody joins it any more."""
        for index in self._wanted:
            self._nodes.order(index, CloseStore(number=number))
        self._wanted.clear()
