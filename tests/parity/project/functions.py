"""Functions as users submit them, each called once by Python itself and once by a launcher."""

import atexit
import os
import random
import sys

from observations import observe

LEFT_OPEN = []


def look():
    """Return all observations, an unseeded random number, and a hash."""
    return {"seen": observe(), "random": random.random(), "hash": hash("text")}


def leave_open(folder):
    """Leave a file open, a hook registered, and text without a newline."""
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
