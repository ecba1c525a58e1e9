"""Computes for the tests of warm compute: one engine, cleanup, other client processes, and projects."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waits import wait_for

import windlass as kt
from windlass import names
from windlass.client.compute.nodes.compute_connection import ask_at
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import PODS
from windlass.records import to_json

if TYPE_CHECKING:
    from cluster_space import Space

PROJECT = Path(__file__).parents[1] / "warm" / "project"
WAIT_S = 120.0
_TTL_S = 240  # a compute that a killed test leaves behind ends by itself


class Ground:
    """Computes on one engine, which the settings select, so tests contain the code that users write."""

    def __init__(self, engine: str, space: Space | None) -> None:
        self.engine = engine
        self.space = space
        self._made: list[kt.Compute] = []

    @property
    def short_ttl_s(self) -> float:
        """An inactivity timeout that is short, but long enough for a client to connect to new nodes."""
        return 1.0 if self.space is None else 8.0

    @property
    def settings(self) -> dict[str, str]:
        if self.space is not None:
            return self.space.settings
        return {"WINDLASS_ENGINE": "local"}

    def make(self, **keywords: Any) -> kt.Compute:
        """Create a compute with a unique name."""
        given = {"name": f"t-{secrets.token_hex(4)}", "inactivity_ttl": _TTL_S, **keywords}
        return self.keep(kt.Compute(**given))

    def keep(self, compute: kt.Compute) -> kt.Compute:
        """Tear a compute down together with the others."""
        self._made.append(compute)
        return compute

    def clean(self) -> None:
        while self._made:
            compute = self._made.pop()
            if compute.name:
                compute.teardown()

    # -- state as seen from outside --------------------------------------------------------------

    def job(self, compute: kt.Compute) -> kt.Job:
        """Return the job behind a compute."""
        return kt.attach(str(compute.nodes().ref))

    def info(self, compute: kt.Compute) -> dict[str, Any]:
        """Return what the lead reports about a compute."""
        nodes = compute.nodes()
        assert nodes.ref is not None
        info = ask_at(nodes.wanted.engine, nodes.ref).to_header()
        return dict(json.loads(json.dumps(info, default=to_json)))

    def pod_uids(self, compute: kt.Compute) -> dict[int, str]:
        """Return the UIDs of a compute's pods by node index."""
        return {index: pod["metadata"]["uid"] for index, pod in self._pods(compute).items()}

    def read_limits(self, compute: kt.Compute) -> dict[int, dict[str, str]]:
        """Return the resource limits of a compute's pods by node index."""
        pods = self._pods(compute).items()
        return {i: pod["spec"]["containers"][0]["resources"]["limits"] for i, pod in pods}

    def _pods(self, compute: kt.Compute) -> dict[int, dict[str, Any]]:
        assert self.space is not None
        labels = f"{names.LABEL_JOB}={self.job(compute).id}"
        pods = self.space.api.list(PODS, labels=labels)
        live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        indexes = [(KUBERNETES.index_of(pod), pod) for pod in live]
        return {index: pod for index, pod in indexes if index is not None}

    def end_node(self, compute: kt.Compute, index: int, agent: tuple[str, int, str]) -> None:
        """End a node by killing its agent's process or deleting its pod."""
        if self.space is None:
            os.kill(agent[1], 9)
            wait_for(lambda: not _is_alive(agent[1]), f"agent {agent[1]} is gone")
            if index:  # a call that the lead accepts before it notices is lost with the node
                wait_for(lambda: index not in self.info(compute)["here"], "the lead knows")
            return
        api, about = self.space.api, self._pods(compute)[index]["metadata"]
        api.delete(PODS, about["name"])
        # a pod takes calls until it is gone, and those are lost with it
        wait_for(lambda: not _has_pod(api, about["uid"]), f"{about['name']} is gone")


def _has_pod(api: Api, uid: str) -> bool:
    return any(pod["metadata"]["uid"] == uid for pod in api.list(PODS))


def _is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


class Client:
    """Another process that uses a compute. In its code, `remote(f)` sends a function of `tasks` to it."""

    def __init__(self, compute: kt.Compute, code: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        script = folder / f"client-{secrets.token_hex(4)}.py"
        script.write_text(f"{_PRELUDE.format(**compute.keywords)}\n{textwrap.dedent(code)}")
        paths = [str(PROJECT), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=PROJECT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read_line(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().rstrip("\n")
        assert line, f"the client printed nothing: {self.process.communicate(timeout=WAIT_S)}"
        return line

    def finish(self) -> str:
        """Wait until the process exits with code 0, and return its remaining output."""
        out, err = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, err
        return out

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


_PRELUDE = """
import warm_tasks as tasks
import windlass as kt
compute = kt.Compute(name={name!r}, inactivity_ttl={inactivity_ttl!r})
def remote(f, **options):
    return kt.fn(f, **options).to(compute)
"""


class Project:
    """Project of one test, with modules that the test writes, imports and edits."""

    def __init__(self, folder: Path, use: Callable[[str], Any]) -> None:
        self.folder = folder
        self._use = use
        self.stem = (
            # modules are global to the process, so no two tests may share one
            f"own_{secrets.token_hex(3)}"
        )
        (folder / "windlass.toml").touch()

    def write(self, name: str, source: str) -> Path:
        """Write a file. `{stem}` in its name or source is replaced by this project's stem."""
        path = self.folder / name.replace("{stem}", self.stem)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).replace("{stem}", self.stem))
        return path

    def load(self, name: str) -> Any:
        return self._use(name.replace("{stem}", self.stem))
