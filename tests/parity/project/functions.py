"""Functions as users hand them over, each to be called once by Python itself and once by a launcher."""

import atexit
import os
import random
import sys

from observations import observe

LEFT_OPEN = []


def look():
    """What code finds, and what it draws unseeded."""
    return {"seen": observe(), "random": random.random(), "hash": hash("text")}


def leave_open(folder):
    """Leaves a file open, a hook registered, text without an end."""
    rank = os.environ.get("RANK", "0")
    file = open(os.path.join(folder, f"left-{rank}.txt"), "w")
    file.write("left open")
    LEFT_OPEN.append(file)
    atexit.register(write, os.path.join(folder, f"atexit-{rank}.txt"))
    return "returned"


def write(path):
    with open(path, "w") as file:
        file.write("atexit")


def leave_with(code):
    sys.exit(code)
