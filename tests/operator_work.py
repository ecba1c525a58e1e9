"""Work of jobs whose pods an operator makes: it waits to be let go, and may fail; how their pods ended."""

from __future__ import annotations

from typing import Any


def make_work() -> Any:
    """Made inside a function, so that it travels by value: pods have no tests."""

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
    """Of a pod's only container; None while it runs."""
    code: int | None = (
        pod["status"]["containerStatuses"][0]["state"].get("terminated", {}).get("exitCode")
    )
    return code
