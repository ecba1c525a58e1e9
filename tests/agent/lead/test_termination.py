"""End of node 0's pod: an agent whose job has ended exits with 0, whatever files its job left.

The lead is a separate process with a real rank. The pod's last word names the files that it cannot keep.
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


def make_result_command(num_bytes, path=RESULT):
    """Return a command that writes a result of that size."""
    return f"echo '{HEADER}' > {path} && truncate -s {num_bytes} {path}"


class PodLead:
    """Lead of a job with one node, whose only rank is a shell command run in the job's folder."""

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

    def wait_for_end(self):
        """Wait for the process, and return its exit code and its last word."""
        code = self.process.wait(60)
        return code, read_last_word(self.log.read_bytes())

    def is_final(self):
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.folder.status.read_bytes())["phase"] == "succeeded"
        return False

    def make_sync(self, folder):
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
    one = lead(f"{make_result_command(64 << 30)}", memory_bytes=4 << 30)
    code, last_word = one.wait_for_end()
    assert code == 0
    assert last_word.omitted == {RESULT: 64 << 30}
    assert json.loads(last_word.files["status.json"])["phase"] == "succeeded"
    assert one.message.read_text() == "succeeded: all 1 ranks returned"


@pytest.mark.parametrize(
    "script",
    [f"mkdir {RESULT}", f"ln -s nowhere {RESULT}", f"ln -s /proc/1/mem {RESULT}"],
    ids=["a folder", "nothing behind it", "not readable"],
)
def test_unreadable_result_does_not_fail_the_agent(lead, script):
    code, last_word = lead(f"{script} && echo done").wait_for_end()
    assert code == 0
    assert RESULT not in last_word.files
    assert last_word.files["attempt-0/rank-0.log"].endswith(b" done\n")


def test_small_results_are_kept_beside_large_ones(lead):
    one = lead(f"{make_result_command(LARGE)} && printf value > attempt-0/rank-1.result")
    code, last_word = one.wait_for_end()
    assert (code, last_word.omitted) == (0, {RESULT: LARGE})
    assert last_word.files["attempt-0/rank-1.result"] == b"value"


def test_arguments_of_a_command_are_not_in_the_last_word(lead):
    """Users who may read logs may not read Secrets, as with Kubernetes' own role `view`."""
    one = lead("test hunter2")
    code, last_word = one.wait_for_end()
    assert code == 0
    assert b"hunter2" in one.folder.plan.read_bytes()
    assert not [path for path, data in last_word.files.items() if b"hunter2" in data]


def test_lead_stopped_after_the_end_exits_with_0(lead):
    """With any other exit code, draining a node would rerun a finished job."""
    one = lead(f"{make_result_command(LARGE)}", constants={"_FIRST_READER_S": 600.0})
    wait_for(one.is_final, "the job has ended")
    one.process.send_signal(signal.SIGTERM)
    code, last_word = one.wait_for_end()
    assert (code, last_word.omitted) == (0, {RESULT: LARGE})


# -- readers -------------------------------------------------------------------------------------


def test_reconnected_reader_gets_its_result(lead, tmp_path):
    """The result is too large for the pod's log."""
    go = tmp_path / "go"
    one = lead(
        f"until [ -e {go} ]; do sleep 0.05; done; {make_result_command(LARGE)}", lease_s=600.0
    )
    client = JobFolder(tmp_path / "client")
    client.path.mkdir()
    first = one.make_sync(client)
    wait_for(first.is_synced.is_set, "the reader is synchronized")
    first.let_go()
    first._thread.join(20)
    go.touch()
    wait_for(one.is_final, "the job has ended")
    again = one.make_sync(client)
    wait_for(lambda: client.result(0, 0).exists(), "the result has arrived")
    assert client.result(0, 0).stat().st_size == LARGE
    code, _ = one.wait_for_end()  # no wait, because the reader has confirmed that it has all
    assert code == 0
    again.close()


def test_lead_waits_a_lease_for_a_lost_reader(lead, tmp_path):
    go = tmp_path / "go"
    one = lead(f"until [ -e {go} ]; do sleep 0.05; done; {make_result_command(LARGE)}", lease_s=0.5)
    client = JobFolder(tmp_path / "client")
    client.path.mkdir()
    sync = one.make_sync(client)
    wait_for(sync.is_synced.is_set, "the reader is synchronized")
    sync.let_go()
    sync._thread.join(20)
    go.touch()
    code, last_word = one.wait_for_end()
    assert (code, last_word.omitted) == (0, {RESULT: LARGE})


def test_lead_does_not_wait_for_a_lost_reader_if_the_log_keeps_all(lead, tmp_path):
    go = tmp_path / "go"
    one = lead(f"until [ -e {go} ]; do sleep 0.05; done; printf value > {RESULT}", lease_s=600.0)
    client = JobFolder(tmp_path / "client")
    client.path.mkdir()
    sync = one.make_sync(client)
    wait_for(sync.is_synced.is_set, "the reader is synchronized")
    sync.let_go()
    sync._thread.join(20)
    go.touch()
    code, last_word = one.wait_for_end()
    assert (code, last_word.files[RESULT]) == (0, b"value")
