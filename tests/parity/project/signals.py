"""Waits until it is stopped, and then saves its state."""

import os
import signal
import sys
import time

rank = os.environ.get("RANK", "0")


def save(why):
    with open(f"saved-{rank}-{why}.txt", "w") as file:
        file.write("saved")


def on_sigterm(number, frame):
    save("SIGTERM handler")
    sys.exit(0)


if "handler" in sys.argv:
    signal.signal(signal.SIGTERM, on_sigterm)
try:
    open(f"up-{rank}", "w").close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)
except KeyboardInterrupt:
    save("KeyboardInterrupt")
finally:
    save("finally")
