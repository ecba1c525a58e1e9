"""What the tests of Monarch have run on node 0, and the actors that they have on all nodes."""

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
    """The mesh is given, the arguments are the caller's."""
    values = spawn(mesh).greet.call(name * times).get(timeout=60)
    return {"sizes": dict(mesh.sizes), "said": [said for _, said in values.items()]}


def greet_until(mesh, name, flag):
    """Keeps its actors until somebody has made the flag: Monarch may lose the last lines of one that ends."""
    actors = spawn(mesh)
    values = actors.greet.call(name).get(timeout=60)
    end_s = time.monotonic() + 60
    while not Path(flag).exists() and time.monotonic() < end_s:
        time.sleep(0.05)
    return len(values)


def look():
    """Asks for its mesh itself."""
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
    """Nobody waits for the actor that ends, so that nobody can handle it."""
    spawn(mesh).end.broadcast()
    time.sleep(60)


def wait_until_killed(mesh, flag):
    spawn(mesh).slice(hosts=1, gpus=0).wait.call_one(flag).get()


def sleep_with_actors(mesh):
    spawn(mesh).greet.call("x").get(timeout=60)
    time.sleep(600)


class Keeper:
    """Keeps its actors between calls."""

    def __init__(self, mesh):
        self.actors = spawn(mesh)

    def greet(self, name):
        return self.actors.slice(hosts=1, gpus=1).greet.call_one(name).get(timeout=60)
