"""Functions that the Monarch tests run on node 0, and the actors that they spawn on all nodes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from monarch.actor import Actor, current_rank, endpoint


class Greeter(Actor):
    @endpoint
    def greet(self, name):
        print(f"actor {current_rank().rank} greets {name}", flush=True)
        return f"{name} {current_rank().rank}"

    @endpoint
    def look(self):
        return os.getpid(), os.getppid(), os.getcwd()

    @endpoint
    def fail(self):
        raise ValueError("an actor's own error")

    @endpoint
    def end(self):
        os._exit(3)

    @endpoint
    def wait(self, flag):
        Path(flag).touch()
        time.sleep(600)


def spawn(mesh):
    return mesh.spawn_procs({"gpus": 2}).spawn("greeters", Greeter)


def greet(mesh, name, times=1):
    """Return the greetings and the mesh sizes.

    The mesh is passed in, and the other arguments come from the caller.
    """
    values = spawn(mesh).greet.call(name * times).get(timeout=60)
    return {"sizes": dict(mesh.sizes), "said": [said for _, said in values.items()]}


def greet_until(mesh, name, flag):
    """Keep the actors until the flag file exists.

    Monarch may lose the last lines of an actor that ends.
    """
    actors = spawn(mesh)
    values = actors.greet.call(name).get(timeout=60)
    end_s = time.monotonic() + 60
    while not Path(flag).exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    return len(values)


def look():
    """Inspect the workers of a mesh that the function itself requests."""
    import windlass.monarch

    mesh = windlass.monarch.host_mesh()
    seen = [one for _, one in spawn(mesh).look.call().get(timeout=60).items()]
    return {
        "hosts": os.environ["WINDLASS_MONARCH_WORKERS"].split(),
        "workers": sorted({parent for _, parent, _ in seen}),
        "folders": {folder for *_, folder in seen},
        "rank": os.getpid(),
    }


def raise_in_actor(mesh):
    spawn(mesh).fail.call().get(timeout=60)


def lose_actor(mesh):
    """Let an actor exit although no caller waits for it, so that its failure cannot be handled."""
    spawn(mesh).end.broadcast()
    time.sleep(60)


def wait_until_killed(mesh, flag):
    spawn(mesh).slice(hosts=1, gpus=0).wait.call_one(flag).get()


def sleep_with_actors(mesh):
    spawn(mesh).greet.call("x").get(timeout=60)
    time.sleep(600)


class Keeper:
    """Object that keeps its actors between calls."""

    def __init__(self, mesh):
        self.actors = spawn(mesh)

    def greet(self, name):
        return self.actors.slice(hosts=1, gpus=1).greet.call_one(name).get(timeout=60)
