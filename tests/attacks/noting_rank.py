"""Rank that ignores SIGTERM and writes the time to a file every 100 ms.

This file is copied to pods, so it imports nothing from the tests.
"""

import os
import pathlib
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
world = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['GROUP_RANK']}"
with open(folder / f"{world}.{os.urandom(4).hex()}", "a", buffering=1) as file:
    while not (folder / "done").exists():
        file.write(f"{time.time()}\n")
        time.sleep(0.1)
