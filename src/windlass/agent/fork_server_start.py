"""Start of a fork server process, in a separate module so that agents can do it before other imports."""

from __future__ import annotations

import os
import sys

from windlass import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def spawn_server(control_fd: int, preload: Sequence[str], env: Mapping[str, str]) -> int:
    """Start a fork server with `control_fd` as its connection, close that here, and return the PID."""
    os.set_inheritable(control_fd, True)
    argv = [sys.executable, sys.argv[0], "forkserver", str(control_fd), ",".join(preload)]
    pid = os.posix_spawn(sys.executable, argv, {names.OPENBLAS_NUM_THREADS: "1", **env})
    os.close(control_fd)
    return pid
