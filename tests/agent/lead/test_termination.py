"""The end of node 0's pod: whatever its job left, an agent whose job has ended exits with 0.

A lead in a process of its own, with a real rank; what it cannot keep is named.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess

import pytest
from pod_connections import make_job
from pod_programs import make_command
from tls_peers import JOB, connect_lead, write_certificates
from waits import wait_for

from windlass.engines.archives import local_archive
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.plan.plan import render_plan
from windlass.spec.work import Command
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import read_last_word

RESULT = "attempt-0/rank-0.result"
LARGE = 3 << 20
HEADER = '{"rank":0,"attempt":0,"state":"returned","at_s":1.0}'


def leave(num_bytes, path=RESULT):
    """A command that leaves a result of that size."""
    return f"echo '{HEADER}' > {path} && truncate -s {num_bytes} {path}"


class PodLead:
    """One lead, node 0 of one, whose only rank is a shell command run in the job's folder."""

    def __init__(self, tmp_path, script, *, memory_bytes=0, constants=None, **spec):
        self.folder = JobFolder(tmp_path / "lead")
        (self.folder.path / "run").mkdir(parents=True)
        work = Command(argv=("sh", "-c", f"cd {self.folder.path} && {script}"))
        self.plan = make_job(nodes=1, work=work, **spec)
        self.folder.plan.write_text(render_plan(self.plan))
        self.files = write_certificates(tmp_path / "tls")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.message, self.log = tmp_path / "message", tmp_path / "log"
        about = {
            "folder": str(self.folder.path),
            "certificates": str(self.files),
            "port": self.port,
            "archive": str(local_archive()),
            "message": str(self.message),
            "memory_bytes": memory_bytes,
            "constants": constants or {"_FIRST_READER_S": 0.1},
        }
        with self.log.open("wb") as log, (tmp_path / "errors").open("wb") as errors:
            self.process = subprocess.Popen(make_command("lead", about), stdout=log, stderr=errors)

    def ends(self):
        """Its exit code, and its last word."""
        code = self.process.wait(60)
        return code, read_last_word(self.log.read_bytes())

    def is_final(self):
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.folder.status.read_bytes())["phase"] == "succeeded"
        return False

    def make_line(self, folder):
        return LeadSync(JOB, folder, lambda: connect_lead(self.port, self.files))


@pytest.fixture
def lead(tmp_path):
    started = []

    def start(script, **about):
        started.append(PodLead(tmp_path, script, **about))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait(20)
        print((tmp_path / "errors").read_text())


def test_a_result_larger_than_memory_is_left_out_and_named(lead):
    one = lead(f"{leave(64 << 30)}", memory_bytes=4 << 30)
    code, said = one.ends()
    assert code == 0
    assert said.omitted == {RESULT: 64 << 30}
    assert json.loads(said.files["status.json"])["phase"] == "succeeded"
    assert one.message.read_text() == "succeeded: all 1 ranks returned"


@pytest.mark.parametrize(
    "script",
    [f"mkdir {RESULT}", f"ln -s nowhere {RESULT}", f"ln -s /proc/1/mem {RESULT}"],
    ids=["a folder", "nothing behind it", "not readable"],
)
def test_a_result_that_cannot_be_read_fails_nobody(lead, script):
    code, said = lead(f"{script} && echo done").ends()
    assert code == 0
    assert RESULT not in said.files
    assert said.files["attempt-0/rank-0.log"].endswith(b" done\n")


def test_what_fits_is_kept_beside_what_does_not(lead):
    one = lead(f"{leave(LARGE)} && printf value > attempt-0/rank-1.result")
    code, said = one.ends()
    assert (code, said.omitted) == (0, {RESULT: LARGE})
    assert said.files["attempt-0/rank-1.result"] == b"value"


def test_arguments_of_a_command_are_not_in_the_last_word(lead):
    """Who may read logs may not read Secrets, as with Kubernetes' own role `view`."""
    one = lead("test hunter2")
    code, said = one.ends()
    assert code == 0
    assert b"hunter2" in one.folder.plan.read_bytes()
    assert not [path for path, data in said.files.items() if b"hunter2" in data]


def test_told_to_stop_after_the_end_it_leaves_its_last_word_and_exits_with_0(lead):
    """A drained node must not have a finished job run again."""
    one = lead(f"{leave(LARGE)}", constants={"_FIRST_READER_S": 600.0})
    wait_for(one.is_final, "the job has ended")
    one.process.send_signal(signal.SIGTERM)
    code, said = one.ends()
    assert (code, said.omitted) == (0, {RESULT: LARGE})


# -- readers -------------------------------------------------------------------------------------


def test_a_reader_whose_line_broke_before_the_end_comes_back_for_its_result(lead, tmp_path):
    """The pod's log would not keep it."""
    go = tmp_path / "go"
    one = lead(f"until [ -e {go} ]; do sleep 0.05; done; {leave(LARGE)}", lease_s=600.0)
    client = JobFolder(tmp_path / "client")
    client.path.mkdir()
    first = one.make_line(client)
    wait_for(first.is_synced.is_set, "the reader is there")
    first.let_go()
    first._thread.join(20)
    go.touch()
    wait_for(one.is_final, "the job has ended")
    again = one.make_line(client)
    wait_for(lambda: client.result(0, 0).exists(), "the result has come")
    assert client.result(0, 0).stat().st_size == LARGE
    code, _ = one.ends()  # at once: the reader has said that it has all
    assert code == 0
    again.close()


def test_a_reader_that_never_comes_back_is_waited_for_as_long_as_a_lease(lead, tmp_path):
    go = tmp_path / "go"
    one = lead(f"until [ -e {go} ]; do sleep 0.05; done; {leave(LARGE)}", lease_s=0.5)
    client = JobFolder(tmp_path / "client")
    client.path.mkdir()
    line = one.make_line(client)
    wait_for(line.is_synced.is_set, "the reader is there")
    line.let_go()
    line._thread.join(20)
    go.touch()
    code, said = one.ends()
    assert (code, said.omitted) == (0, {RESULT: LARGE})


def test_a_reader_that_left_is_not_waited_for_where_the_log_keeps_all(lead, tmp_path):
    go = tmp_path / "go"
    one = lead(f"until [ -e {go} ]; do sleep 0.05; done; printf value > {RESULT}", lease_s=600.0)
    client = JobFolder(tmp_path / "client")
    client.path.mkdir()
    line = one.make_line(client)
    wait_for(line.is_synced.is_set, "the reader is there")
    line.let_go()
    line._thread.join(20)
    go.touch()
    code, said = one.ends()
    assert (code, said.files[RESULT]) == (0, b"value")
