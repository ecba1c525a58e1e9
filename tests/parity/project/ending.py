"""Resources that a script leaves for the interpreter to finish. `sys.argv[1]` selects how it exits."""

import atexit
import concurrent.futures
import ctypes
import gzip
import io
import logging
import logging.handlers
import os
import shelve
import sys
import tempfile
import threading
import time
import weakref
import zipfile

import ending_module

LOG = os.open("order.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
# Code that runs after `sys` and `os` are gone must not need them.
note = lambda text, write=os.write, fd=LOG: write(fd, f"{text}\n".encode())  # noqa: E731


# -- files --

text_file = open("text.csv", "w")
text_file.write("step,loss\n")
binary_file = open("binary.bin", "wb")
binary_file.write(b"x" * 10_000)
wrapped = io.TextIOWrapper(io.BufferedWriter(io.FileIO("wrapped.txt", "w")), encoding="utf-16-le")
wrapped.write("wide")
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("member", "inside")
compressed = gzip.GzipFile("compressed.gz", "wb", mtime=0)
compressed.write(b"compressed")
shelf = shelve.open("shelf", writeback=True)
shelf["list"] = [1]
shelf["list"].append(2)


def write_in_a_function():
    local = open("local.txt", "w")
    local.write("local")
    if sys.argv[1] == "raise":
        raise ValueError("the end")
    if sys.argv[1] == "exit":
        sys.exit(3)


class Tee:
    """Custom stream, because Python flushes `sys.stdout` whatever it is."""

    def __init__(self, below):
        self.below, self.held = below, []

    def write(self, text):
        self.held.append(text)

    def flush(self):
        self.below.write("".join(self.held))
        self.below.flush()
        self.held.clear()


# -- C streams --

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
c_file = ctypes.c_void_p(libc.fopen(b"c_file.txt", b"w"))
libc.fputs(b"from C", c_file)
libc.printf(b"printf without a newline")
libc.strdup.restype = ctypes.c_void_p
command = ctypes.c_void_p(libc.strdup(b"echo ran > c_exit_hook.txt"))  # outlives Python's memory
libc.__cxa_atexit(libc.system, command, None)

# -- temporary files --

folder = tempfile.TemporaryDirectory(prefix="folder-", dir="temporary")
named = tempfile.NamedTemporaryFile(prefix="named-", dir="temporary")
named.write(b"gone")
kept_fd, kept = tempfile.mkstemp(prefix="kept-", dir="temporary")

# -- finalizers --


class Noisy:
    def __init__(self, name, note=note):
        self.name, self.note = name, note

    def __del__(self):
        self.note(f"del {self.name}")


first = Noisy("first")
second = Noisy("second")
_hidden = Noisy("hidden")
in_a_module = ending_module.keep(Noisy("of a module"))
cycle = [Noisy("in a cycle")]
cycle.append(cycle)


def generate(note=note):
    try:
        yield 1
    finally:
        note("generator closed")


generator = generate()
next(generator)

atexit.register(note, "atexit registered first")
atexit.register(note, "atexit registered second")
atexit.register(lambda: atexit.register(note, "atexit registered in atexit"))
finalized = Noisy("finalized")
weakref.finalize(finalized, note, "weakref.finalize")
weakref.finalize(finalized, note, "weakref.finalize without atexit").atexit = False

# -- logging --

memory = logging.handlers.MemoryHandler(100, target=logging.FileHandler("logging.txt"))
logging.getLogger().addHandler(memory)
logging.getLogger().warning("held until the end")

# -- threads --


def work_late(name):
    if name == "thread":
        threading.main_thread().join()  # so the interpreter waits for this thread
    else:
        time.sleep(0.02)  # executors are joined before the main thread counts as ended
    note(name)
    print(f"printed by {name}", file=sys.__stdout__, flush=True)


threading.Thread(target=work_late, args=("thread",)).start()
# not a function of this module, because its frame would keep the whole module alive
threading.Thread(target=threading.Event().wait, daemon=True).start()
executor = concurrent.futures.ThreadPoolExecutor(1)
for number in range(3):
    executor.submit(work_late, f"future {number}")


if __name__ == "__main__":
    sys.stdout = Tee(sys.stdout)
    print("held by a stream of the user's own")
    print("an error without an end", end="", file=sys.stderr)
    note("end of the script")
    write_in_a_function()
