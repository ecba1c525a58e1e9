"""Processes: all descendants of a process are found and killed, even outside its session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from waits import wait_for

from windlass import processes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

# A parent with two children and grandchildren in their own sessions. The parent of one has exited.
TREE = """
import json, os, subprocess, sys
from windlass import processes
assert processes.become_subreaper()
env = {**os.environ, "MARK": sys.argv[1]}
subprocess.Popen(["sh", "-c", "setsid sleep 611 & sleep 612 & wait"], env=env)
subprocess.run(["sh", "-c", "setsid sleep 613 </dev/null >/dev/null 2>&1 & exit 0"], env=env)
print("ready", flush=True)
sys.stdin.readline()
killed = processes.kill_descendants(os.getpid(), spare=frozenset(map(int, sys.argv[2:])))
print(json.dumps(killed), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def tree(tmp_path):
    mark = f"tree-{tmp_path.name}-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", TREE, mark], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        yield parent, mark
        for pid in {*processes.find_marked(f"MARK={mark}"), parent.pid}:
            processes.kill(pid, signal.SIGKILL)


def _commands(pids):
    found = set()
    for pid in pids:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            found.add(file.read().replace(b"\0", b" ").decode().strip())
    return found


def test_descendants_are_found_across_sessions(tree):
    parent, mark = tree
    sleeps = {"sleep 611", "sleep 612", "sleep 613"}
    wait_for(
        lambda: sleeps <= _commands(processes.find_descendants(parent.pid)), "the tree has grown"
    )
    assert parent.pid not in processes.find_descendants(parent.pid)
    assert processes.find_descendants(parent.pid) < processes.find_descendants(os.getpid())
    assert set(processes.find_marked(f"MARK={mark}")) == processes.find_descendants(parent.pid)


def test_all_descendants_are_killed(tree):
    parent, mark = tree
    wait_for(lambda: len(processes.find_marked(f"MARK={mark}")) == 4, "the tree has grown")
    parent.stdin.write("\n")
    parent.stdin.flush()
    assert json.loads(parent.stdout.readline()) == 4
    wait_for(lambda: processes.find_marked(f"MARK={mark}") == [], "all have exited")
    assert parent.poll() is None


def test_spared_processes_are_not_killed():
    code = (
        "import os, subprocess, sys; from windlass import processes\n"
        "spared, other = (subprocess.Popen(['sleep', '614']) for _ in range(2))\n"
        "assert processes.kill_descendants(os.getpid(), spare=frozenset({spared.pid})) == 1\n"
        "assert other.wait() == -9 and spared.poll() is None\n"
        "spared.kill(); spared.wait()\n"
        "assert processes.kill_descendants(os.getpid()) == 0\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_process_that_forks_while_it_is_killed_is_killed():
    code = (
        "import os, subprocess, sys; from windlass import processes\n"
        "processes.become_subreaper()\n"
        "loop = 'while :; do sleep 615 & sleep 0.001; done'\n"
        "breeder = subprocess.Popen(['sh', '-c', f'echo; {loop}'], stdout=subprocess.PIPE)\n"
        "breeder.stdout.readline()\n"
        "processes.kill_descendants(os.getpid())\n"
        "assert processes.find_descendants(os.getpid()) == set(), processes.find_descendants(os.getpid())\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_die_with_parent(tmp_path):
    pid_file = tmp_path / "pid"
    child = (
        "import os, signal, sys, time; from windlass import processes\n"
        "processes.die_with_parent(int(sys.argv[1]), signal.SIGKILL)\n"
        "new = sys.argv[2] + '.new'; print(os.getpid(), file=open(new, 'w')); os.rename(new, sys.argv[2])\n"
        "time.sleep(600)\n"
    )
    parent = (
        "import os, subprocess, sys; _, code, file = sys.argv\n"
        "subprocess.run([sys.executable, '-c', code, str(os.getpid()), file])\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent, child, str(pid_file)]) as process:
        wait_for(pid_file.exists, "the child is running")
        process.kill()
    pid = int(pid_file.read_text())
    wait_for(lambda: pid not in processes.read_parents(), "the child died with its parent")


def test_parent_that_exited_earlier_is_detected():
    code = (
        "import signal; from windlass import processes\n"
        "processes.die_with_parent(1 << 22, signal.SIGKILL); print('alive')\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (-signal.SIGKILL, "")


def test_killing_an_exited_process_is_harmless():
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    processes.kill(gone.pid, signal.SIGKILL)
    processes.kill_group(gone.pid, signal.SIGKILL)
    assert gone.pid not in processes.read_parents()


def test_zombies_are_not_counted():
    with subprocess.Popen(["true"]) as child:
        wait_for(lambda: child.pid not in processes.read_parents(), "the zombie is not counted")
        assert child.pid not in processes.find_descendants(os.getpid())


def test_names_with_parentheses_are_parsed(tmp_path):
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "616"]) as child:
        try:
            wait_for(
                lambda: processes.read_parents().get(child.pid) == os.getpid(),
                "its parent is known",
            )
        finally:
            child.kill()


def test_mark_must_match_the_whole_variable():
    with subprocess.Popen(
        ["sleep", "617"], env={"MARK": "job-12", "PATH": os.environ["PATH"]}
    ) as child:
        try:
            wait_for(lambda: child.pid in processes.find_marked("MARK=job-12"), "it is found")
            assert child.pid not in processes.find_marked("MARK=job-1")
            assert child.pid not in processes.find_marked("ARK=job-12")
        finally:
            child.kill()


def test_threads_are_counted():
    before, done = processes.count_threads(), threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert processes.count_threads() == before + 1
    finally:
        done.set()
        thread.join()


def test_memory_kills_only_grow():
    assert 0 <= processes.read_oom_kills() <= processes.read_oom_kills()
