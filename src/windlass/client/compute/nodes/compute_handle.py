"""Compute: a named, warm set of nodes. It describes them, and the first call or `.to` starts them.

    compute = Compute(gpus=8, memory="512Gi", image=images.pytorch("24.08-py3"))

Two computes with the same name and spec are the same nodes, even in different processes.
`client.compute.nodes.compute_spec` reads the keywords. `client.compute.nodes.live_nodes` manages the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.client.compute.nodes.compute_keywords import check_values
from windlass.client.compute.nodes.compute_owners import name_user
from windlass.client.compute.nodes.compute_spec import decide
from windlass.client.compute.nodes.distribution import Distribution, default_framework, make_spread
from windlass.client.compute.nodes.live_nodes import LAUNCH_TIMEOUT_S, LiveNodes
from windlass.client.keywords import COMPUTE, COMPUTE_MORE, DISTRIBUTE_MORE, show_keywords
from windlass.engines.protocol import JobRef
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.reading import read_duration

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from windlass.client.keyword_types import ComputeKeywords, OtherDistributeKeywords

_OF_SPREAD = ("framework", "workers", "replicas", "nodes", "num_nodes", "num_workers")
_TTL = "1h"


def check_compute_keywords(given: Mapping[str, Any]) -> None:
    """Raise SpecError for an unknown keyword, and suggest the most similar known one."""
    usual = [keyword.name for keyword in COMPUTE]
    known = (*usual, *(keyword.name for keyword in COMPUTE_MORE))
    for name in given:
        if name in _OF_SPREAD:
            raise SpecError(
                f"Compute has no keyword {name!r}: it belongs to .distribute",
                hint=f"use Compute(...).distribute({_spell(name)}={given[name]!r})",
            )
        if name not in known:
            listed = f"available: {', '.join(usual)}"
            hint = did_you_mean(name, known, listed, show=repr, alike=0.5)
            raise SpecError(f"Compute has no keyword {name!r}", hint=hint)


def _spell(keyword: str) -> str:
    return keyword if keyword == "framework" else "workers"


class Compute:
    """Named set of warm nodes. Two computes with the same name and spec are the same nodes."""

    @show_keywords(COMPUTE, COMPUTE_MORE)
    def __init__(self, **keywords: Unpack[ComputeKeywords]) -> None:
        """Describe the nodes. The first call, `.up()` or `.to` starts them."""
        check_compute_keywords(keywords)
        check_values(keywords)
        self.keywords: Mapping[str, Any] = keywords
        self.name = str(keywords.get("name") or "")
        self.spread: Distribution | None = None
        self._nodes: list[LiveNodes] = []  # shared with the copies that `distribute` returns
        self._launch_s = _read_launch(keywords.get("launch_timeout"))

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.keywords.items())
        return f"Compute({shown})"

    @property
    def image(self) -> Any:
        """Image given as a keyword."""
        return self.keywords.get("image")

    @show_keywords(DISTRIBUTE_MORE)
    def distribute(
        self,
        framework: str = "",
        workers: int | str = 1,
        procs: int | None = None,
        **more: Unpack[OtherDistributeKeywords],
    ) -> Compute:
        """Return the same compute with this many nodes. Callables that are sent to it run on all nodes.

        framework: framework of the ranks: pytorch, spmd, ray, monarch or command (default: the setting).
        workers: number of nodes, not counting ray's head. "2:4" means at least 2 and at most 4.
        procs: ranks per node (default: one per GPU, or 1).
        """
        spread_out = Compute(**self.keywords)
        spread_out.name, spread_out._nodes = self.name, self._nodes
        spread_out.spread = make_spread(
            framework or default_framework(), workers=workers, procs=procs, **more
        )
        return spread_out

    def nodes(self, default_name: str = "") -> LiveNodes:
        """Return the live nodes. An unnamed compute is named after the first callable sent to it."""
        if not self._nodes:
            self.name = self.name or make_compute_name(default_name or "compute")
            wanted = decide({"inactivity_ttl": _TTL, **self.keywords})
            self._nodes.append(LiveNodes(self.name, wanted, launch_timeout_s=self._launch_s))
        return self._nodes[0]

    @classmethod
    def at(cls, ref: JobRef, name: str, *, context: str = "") -> Compute:
        """Return a handle for a live compute, whatever its spec.

        ref: the compute's job.
        name: the compute's name.
        context: the kubeconfig's context (default: the setting).
        """
        where: ComputeKeywords = {"engine": ref.engine}
        if ref.place:
            where["namespace"] = ref.place
        if context:
            where["context"] = context
        living = cls(**where)
        living.name = name
        wanted = decide(where, is_there=True)
        living._nodes.append(LiveNodes(name, wanted))
        living._nodes[0].adopt(ref)
        return living

    def up(self, workers: int | str = 1) -> Compute:
        """Start the nodes now rather than with the first call.

        workers: number of nodes, unless `.distribute` set it. "2:4" means at least 2 and at most 4.
        """
        self.nodes().bring_up(self.spread or make_spread(workers=workers))
        return self

    def teardown(self) -> None:
        """End the nodes. A later call starts new ones."""
        if self._nodes:
            self._nodes[0].teardown()
            return
        # ending live nodes requires only their name and engine
        wanted, name = (
            decide(self.keywords, is_there=True),
            self.name or make_compute_name("compute"),
        )
        LiveNodes(name, wanted, launch_timeout_s=self._launch_s).teardown()


def make_compute_name(what: str) -> str:
    """Return a name that starts with the user's name."""
    return f"{name_user()}-{what}".replace("_", "-").lower()[:40].strip("-")


def _read_launch(given: Any) -> float:
    if given is None:
        return LAUNCH_TIMEOUT_S
    timeout_s = read_duration(given)
    if timeout_s <= 0:
        raise SpecError(
            "launch_timeout must be more than 0", hint='use a value such as 600 or "10m"'
        )
    return timeout_s
