"""Compute: a named, warm set of nodes. Says what they are like; the first call, or `.to`, brings them up.

    compute = Compute(gpus=8, memory="512Gi", image=images.pytorch("24.08-py3"))

Two computes of one name and one spec are the same nodes, from whatever process. What the keywords mean is
`client.compute.compute_spec`; the nodes themselves are `client.compute.live_nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.client.compute.check_values import check_values
from windlass.client.compute.compute_spec import decide
from windlass.client.compute.distribution import Distribution, make_spread
from windlass.client.compute.live_nodes import LiveNodes
from windlass.client.user import name_user
from windlass.engines.protocol import JobRef
from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.settings.durations import read_duration

KEYWORDS = (
    *("cpus", "memory", "gpus", "gpu_type", "image", "env", "secrets", "volumes", "namespace"),
    *("node_selector", "tolerations", "priority_class", "service_account", "queue", "shm"),
    *("labels", "annotations", "inactivity_ttl", "launch_timeout", "working_dir", "pod_patch"),
    *("name", "engine", "root"),
)
# also there, for those who know the settings
_MORE = (
    *("context", "requests", "ephemeral_storage", "gpu_label", "gpu_resource", "spread", "pack"),
    *("pull_secrets", "run_as", "python", "preload", "grace_s", "peer_wait_s", "start", "procs"),
)
_OF_SPREAD = ("workers", "replicas", "nodes", "num_nodes", "num_workers")
_TTL = "1h"
_LAUNCH_TIMEOUT_S = 900.0


def check_keywords(given: Mapping[str, Any]) -> None:
    """Refuse a keyword that a compute does not have, and name the nearest that it has."""
    known = (*KEYWORDS, *_MORE)
    for name in given:
        if name in _OF_SPREAD:
            raise SpecError(
                f"Compute has no keyword {name!r}: that is said where it is spread",
                hint=f"Compute(...).distribute(workers={given[name]!r})",
            )
        if name not in known:
            listed = f"there are {', '.join(KEYWORDS)}"
            hint = did_you_mean(name, known, listed, show=repr, alike=0.5)
            raise SpecError(f"Compute has no keyword {name!r}", hint=hint)


class Compute:
    """What nodes are wanted, and under which name they live."""

    def __init__(self, **keywords: Any) -> None:
        check_keywords(keywords)
        check_values(keywords)
        self.keywords = keywords
        self.name = str(keywords.get("name") or "")
        self.spread: Distribution | None = None
        self._nodes: list[LiveNodes] = []  # shared by all that `distribute` returns
        self._launch_s = _read_launch(keywords.get("launch_timeout"))

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.keywords.items())
        return f"Compute({shown})"

    @property
    def image(self) -> Any:
        """The image it was given."""
        return self.keywords.get("image")

    def distribute(
        self,
        framework: str = "pytorch",
        workers: int | str = 1,
        procs: int | None = None,
        **more: Any,
    ) -> Compute:
        """The same nodes, so many of them: what is sent to it runs on all of them."""
        found = Compute(**self.keywords)
        found.name, found._nodes = self.name, self._nodes
        found.spread = make_spread(framework, workers=workers, procs=procs, **more)
        return found

    def nodes(self, default_name: str = "") -> LiveNodes:
        """The live nodes; a compute without a name is called after what is sent to it first."""
        if not self._nodes:
            self.name = self.name or make_name(default_name or "compute")
            wanted = decide({"inactivity_ttl": _TTL, **self.keywords})
            self._nodes.append(LiveNodes(self.name, wanted, launch_timeout_s=self._launch_s))
        return self._nodes[0]

    @classmethod
    def at(cls, ref: JobRef, name: str, **where: Any) -> Compute:
        """A compute that lives, whatever its nodes are like."""
        where |= {"engine": ref.engine, **({"namespace": ref.place} if ref.place else {})}
        found = cls(**where)
        found.name = name
        wanted = decide(where, is_there=True)
        found._nodes.append(LiveNodes(name, wanted, launch_timeout_s=_LAUNCH_TIMEOUT_S))
        found._nodes[0].adopt(ref)
        return found

    def up(self, workers: int | str = 1) -> Compute:
        """Bring the nodes up now, rather than with the first call."""
        spread = self.spread or make_spread(workers=workers)
        self.nodes().bring_up(spread.workers, min_nodes=spread.min_workers)
        return self

    def teardown(self) -> None:
        """End the nodes. What is called on it afterwards starts others."""
        if self._nodes:
            self._nodes[0].teardown()
            return
        # of those that live under its name, nothing but that must be known
        wanted, name = decide(self.keywords, is_there=True), self.name or make_name("compute")
        LiveNodes(name, wanted, launch_timeout_s=self._launch_s).teardown()


def make_name(what: str) -> str:
    """A name that is this user's own."""
    return f"{name_user()}-{what}".replace("_", "-").lower()[:40].strip("-")


def _read_launch(given: Any) -> float:
    if given is None:
        return _LAUNCH_TIMEOUT_S
    found = read_duration(given)
    if found <= 0:
        raise SpecError("launch_timeout must be more than 0", hint='write 600 or "10m"')
    return found
