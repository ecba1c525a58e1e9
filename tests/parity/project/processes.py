"""Processes that a script starts with multiprocessing, with or without joining them."""

import concurrent.futures
import json
import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory


def describe(queue, name):
    import __main__

    print(f"printed by {name}", flush=True)
    queue.put(
        {
            "name": multiprocessing.current_process().name,
            "argv": sys.argv,
            "main": __main__.__name__,
            "main_file": os.path.basename(__main__.__file__),
            "path": sys.path[0] == os.path.dirname(os.path.abspath(__file__)),
            "has_parent": multiprocessing.parent_process() is not None,
            "rank": os.environ.get("RANK", "0"),
            "function_module": describe.__module__,
        }
    )


def square(x):
    return x * x


def fail(code):
    sys.exit(code)


def write_late(path, delay_s):
    time.sleep(delay_s)
    with open(path, "w") as file:
        file.write("late")


def observe_children(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=describe, args=(queue, method), name=f"by {method}")
    child.start()
    seen = queue.get(timeout=60)
    child.join()
    failing = context.Process(target=fail, args=(7,))
    failing.start()
    failing.join()
    with context.Pool(2) as pool:
        squares = pool.map(square, range(4))
    return {"child": seen, "code": child.exitcode, "failing": failing.exitcode, "squares": squares}


def observe_executor():
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        return list(executor.map(square, range(4)))


if __name__ == "__main__":
    seen = {method: observe_children(method) for method in ("fork", "spawn", "forkserver")}
    seen["executor"] = observe_executor()
    with multiprocessing.Manager() as manager:
        seen["manager"] = list(manager.list([1, 2]))
    with open("processes.json", "w") as file:
        json.dump(seen, file)
    # left to the interpreter:
    fork = multiprocessing.get_context("fork")
    fork.Process(target=write_late, args=("joined.txt", 0.2)).start()
    fork.Process(target=write_late, args=("terminated.txt", 30), daemon=True).start()
    abandoned = fork.Pool(1)
    abandoned.apply_async(square, (2,))
    leaked = shared_memory.SharedMemory(create=True, size=100)
    with open("leaked.txt", "w") as file:
        file.write(leaked.name)
    feeder = fork.Queue()
    feeder.put("x" * 100)
    print("end of the script")
