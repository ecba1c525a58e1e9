"""Choice of the engines and markers for each case of the contract suite.

Operator engines differ from the Kubernetes engine only in how their pods are made. They run the cases marked
`engine_matters`. The engine of the package windlass-statefulset runs all cases, but only in `make
test-contract` (`thorough`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from windlass_statefulset import STATEFUL_SET

from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.engines.dialects.trainjob import TRAINJOB

OPERATORS = (MONARCHMESH, PYTORCHJOB, RAYCLUSTER, TRAINJOB)


def choose_engines(case: pytest.Item) -> list[Any]:
    """Return the names of the engines that run a case, as parameters with marks."""
    engines: list[Any] = []
    if not case.get_closest_marker("cluster_only"):
        engines.append("local")
    needed = {mark.args[0] for mark in case.iter_markers("needs_can")}
    if not case.get_closest_marker("local_only"):
        matters = case.get_closest_marker("engine_matters") is not None
        engines += [
            pytest.param(dialect.name, marks=marks)
            for dialect, marks in _choose_dialects(has_operators=matters)
            if needed <= dialect.can
        ]
    return engines


def _choose_dialects(*, has_operators: bool) -> Iterator[tuple[Dialect, list[Any]]]:
    yield KUBERNETES, [pytest.mark.cluster]
    yield STATEFUL_SET, [pytest.mark.cluster, pytest.mark.thorough]
    for dialect in OPERATORS if has_operators else ():
        yield dialect, [pytest.mark.cluster]
