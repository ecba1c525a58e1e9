"""Starting a fork server process: a file of its own, so that an agent can do it before all else."""

from __future__ import annotations

import os
import sys

from windlass import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def spawn_server(control_fd: int, preload: Sequence[str], env: Mapping[str, str]) -> int:
    """Start a fork server that talks over `control_fd`, which is closed here; returns its pid."""
    os.set_inheritable(control_fd, True)
    argv = [sys.executable, sys.argv[0], "forkserver", str(control_fd), ",".join(preload)]
    pid = os.posix_spawn(sys.executable, argv, {names.OPENBLAS_NUM_THREADS: "1", **env})
    os.close(control_fd)
    return pid
