"""Jobs on a real cluster whose pods an operator creates: the use of a dialect, and work for its pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_space import Space

import windlass as wl
from windlass.engines.dialects.dialect import Dialect
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs

# Each line is written with one call, because torchrun's workers share a pipe. torchrun starts them with
# `python -u`, which writes the newline of a printed line separately.
ALL_REDUCE = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}\\n")
sys.stdout.flush()
dist.destroy_process_group()
"""


def skip_where_missing(dialect: Dialect, space: Space) -> None:
    try:
        check_needs(space.api, dialect.needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)


@contextmanager
def use_dialect(
    dialect: Dialect, space: Space, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Iterator[None]:
    """Use a dialect in an empty folder.

    The project fits in the Secret that way, so a submission does not wait for a pod.
    """
    skip_where_missing(dialect, space)
    monkeypatch.chdir(folder)
    for name, value in {**space.settings, "WINDLASS_ENGINE": dialect.name}.items():
        monkeypatch.setenv(name, value)
    yield
    for job in wl.jobs():
        job.cancel(now=True)
        job.wait(60)
        job.remove()


def make_work() -> Any:
    """Return a local function. It is pickled by value, because the test modules are not in the pods."""

    def wait_for_go(folder: str, fails: bool = False) -> str:
        import os
        import time
        from pathlib import Path

        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        Path(folder, f"up-{attempt}-{rank}-{os.environ['WINDLASS_POD_UID']}").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.05)
        print(f"rank {rank} goes")
        if fails and rank == "0":
            raise ValueError("the user's")
        return attempt

    return wait_for_go


def read_exit_code(pod: dict[str, Any]) -> int | None:
    """Return the exit code of a pod's only container, or None while it runs."""
    code: int | None = (
        pod["status"]["containerStatuses"][0]["state"].get("terminated", {}).get("exitCode")
    )
    return code
