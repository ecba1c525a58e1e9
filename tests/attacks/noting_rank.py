"""A rank that is deaf to SIGTERM and notes every few moments that it lives. Travels to pods alone."""

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
