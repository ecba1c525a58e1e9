"""Place of an agent among the nodes of its job, from the variables that its engine set.

A table lists the sources in order, and each fact comes from the first source that provides it. This module
performs no I/O: the variables and the host name are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from windlass import names
from windlass.errors import EngineError

_ORDINAL = re.compile(r"-(0|[1-9][0-9]{0,5})\Z")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_NUM_NODES = re.compile(r"(?:[0-9]{1,6}:)?([1-9][0-9]{0,5})")  # torchrun's MIN:MAX, too


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSource:
    """Names of the variables with a node's place on one kind of engine, or empty if it has none."""

    engine: str
    index: str = ""
    num_nodes: str = ""
    lead: str = ""
    losses: str = ""


SOURCES = (
    PlaceSource(
        engine="Windlass",
        index=names.NODE_INDEX,
        num_nodes=names.NUM_NODES,
        lead=names.LEAD,
        losses=names.NODE_FAILURES,
    ),
    PlaceSource(engine="Indexed Job", index="JOB_COMPLETION_INDEX"),
    PlaceSource(
        engine="Kubeflow Trainer",
        index=names.PET_NODE_RANK,
        num_nodes=names.PET_NNODES,
        lead=names.PET_MASTER_ADDR,
    ),
    # RANK counts the pods, with the Master first. WORLD_SIZE may count processes, so it is not used.
    PlaceSource(engine="PyTorchJob", index=names.RANK, lead=names.MASTER_ADDR),
    # The last resort is the number at the end of the host name: the ordinal of a StatefulSet's pod, or of a
    # worker of a PyTorchJob without a Master.
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Place of one agent."""

    index: int | None  # None: the lead assigns it
    lead: str  # host name of the lead
    num_nodes: int | None = None  # None: the plan has the number
    num_losses: int = 0  # number of earlier nodes with this index


def find_place(environ: Mapping[str, str], host: str) -> NodePlace:
    """Determine the agent's place from `environ` and the host name. Raise EngineError if it is unknown."""
    lead = _find(environ, *(source.lead for source in SOURCES))
    if lead is None:
        raise EngineError(
            "the address of the lead is not set in this pod",
            hint=f"its engine must set {names.LEAD} to a host name",
        )
    losses = _find(environ, *(source.losses for source in SOURCES))
    place = NodePlace(
        index=_find_index(environ, host),
        lead=lead[1],
        num_nodes=_find_num_nodes(environ),
        num_losses=_read_number(*losses) if losses else 0,
    )
    if place.index is not None and place.num_nodes is not None and place.index >= place.num_nodes:
        raise EngineError(
            f"this pod is node {place.index}, but there are only {place.num_nodes} nodes",
            hint="nodes count from 0",
        )
    return place


def _find(environ: Mapping[str, str], *variables: str) -> tuple[str, str] | None:
    """Return the name and value of the first variable that is set and not empty."""
    return next(((name, environ[name]) for name in variables if environ.get(name)), None)


def _find_index(environ: Mapping[str, str], host: str) -> int | None:
    variable = _find(environ, *(source.index for source in SOURCES))
    if variable == (names.NODE_INDEX, names.INDEX_FROM_LEAD):
        return None
    if variable is not None:
        first = environ.get(names.FIRST_INDEX) or "0"
        return _read_number(*variable) + _read_number(names.FIRST_INDEX, first)
    ordinal = _ORDINAL.search(host.partition(".")[0])
    if ordinal is None:
        variables = ", ".join(source.index for source in SOURCES)
        raise EngineError(
            f"cannot determine the node index of this pod: none of {variables} is set, "
            f"and its host name {host!r:.80} does not end in a number",
            hint=f"its engine must set {names.NODE_INDEX}",
        )
    return int(ordinal[1])


def _find_num_nodes(environ: Mapping[str, str]) -> int | None:
    variable = _find(environ, *(source.num_nodes for source in SOURCES))
    if variable is None:
        return None
    number = _NUM_NODES.fullmatch(variable[1])
    if number is None:
        raise EngineError(
            f"{variable[0]} must be a number of nodes, not {variable[1]!r:.40}",
            hint="its engine must set a number of at least 1, or MIN:MAX",
        )
    return int(number[1])


def _read_number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise EngineError(
            f"{name} must be a whole number, not {value!r:.40}",
            hint="its engine must set a number of at least 0",
        )
    return int(value)
