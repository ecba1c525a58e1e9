"""Attack: data from a pod or a rank that expands enormously, or that a parser cannot handle.

Covers pod logs, status files, result and error files, reports, and lists in hello messages. Each is refused
or truncated before it costs memory, and clients that follow the job continue.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import resource
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import rank_work as work
from pod_connections import make_job, run_lead_server
from tls_peers import JOB, connect_lead, until

import windlass as wl
from windlass import records
from windlass.agent.node.world_ranks import read_error_file
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.errors import ProtocolError
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.last_word import num_lines, read_last_word
from windlass.wire.log_files import RankLog
from windlass.wire.log_lines import read_pod_log
from windlass.wire.results import ErrorInfo, ResultHeader, describe_value, read_header, write_result
from windlass.wire.status import (
    Phase,
    StatusFile,
    make_first_status,
    read_status,
    read_world,
    render_status,
)

DEEP = b"[" * 100_000 + b"]" * 100_000
LESS_DEEP = b"[" * 500 + b"]" * 500
MANY_DIGITS = b"9" * 5_000


@pytest.fixture
def folder(tmp_path):
    found = JobFolder(tmp_path / "job")
    found.path.mkdir()
    found.attempt(0).mkdir()
    return found


@pytest.fixture
def memory_limit():
    """Limit the address space to 256 MiB more than the process uses now."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


# -- the last word in a pod's log ----------------------------------------------------------------


def _last_word(data: bytes) -> bytes:
    text = base64.b64encode(data)
    parts = [text[at : at + 12_000] for at in range(0, len(text), 12_000)]
    return b"".join(
        b"windlass-last-word %d/%d %s\n" % (number, len(parts), part)
        for number, part in enumerate(parts, 1)
    )


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        b"windlass-last-word 1/999999999999 AA",
        b"windlass-last-word 1/99999 AA",
        b"windlass-last-word 1/%s AA" % MANY_DIGITS,
        b"windlass-last-word %s/1 AA" % MANY_DIGITS,
    ],
)
def test_last_word_that_claims_many_parts_is_refused(line, memory_limit):
    assert read_last_word(line) is None
    assert num_lines(line) <= 2048


@pytest.fixture
def bomb():
    """Return a zip file of about 300 KB that unpacks to 300 MiB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("status.json", "w") as file:
            for _ in range(300):
                file.write(bytes(1 << 20))
        archive.writestr("omitted.json", b"{}")
    assert len(buffer.getvalue()) < 400_000
    return buffer.getvalue()


def test_last_word_that_unpacks_to_much_is_refused(bomb, memory_limit):
    assert read_last_word(_last_word(bomb)) is None


def test_last_word_with_false_size_is_refused(bomb, memory_limit):
    true, small = (300 << 20).to_bytes(4, "little"), (10).to_bytes(4, "little")
    assert true in bomb
    assert read_last_word(_last_word(bomb.replace(true, small))) is None


@pytest.mark.parametrize(
    "omitted", [DEEP, LESS_DEEP, b"[]", b'{"a": "b"}', b'{"a": %s}' % MANY_DIGITS, b"", b"\xff"]
)
def test_last_word_with_malformed_list_is_refused(omitted):
    assert read_last_word(_last_word(_zip({"omitted.json": omitted}))) is None


def test_last_word_of_many_files_is_refused():
    files = {f"f{number}": b"" for number in range(20_001)}
    assert read_last_word(_last_word(_zip({**files, "omitted.json": b"{}"}))) is None


def test_last_word_in_overlong_line_is_refused(memory_limit):
    """The archive lists a million file names. Each takes memory before the parser can count them."""
    entries = struct.pack("<4s24xH16xs", b"PK\1\2", 1, b"a") * 1_000_000
    end = struct.pack("<4s8x2I2x", b"PK\5\6", len(entries), 0)
    text = base64.b64encode(entries + end)
    assert read_last_word(b"windlass-last-word 1/1 " + text) is None


def test_pod_lines_of_impossible_ranks_are_ignored():
    when = b"2026-01-31T12:00:00.123456789Z "
    lines = [b"[rank %s] x" % MANY_DIGITS, b"[rank 1, attempt %s] x" % MANY_DIGITS, b"[rank 2] y"]
    found = list(read_pod_log(b"".join(when + line + b"\n" for line in lines)))
    assert [(rank, attempt) for rank, attempt, _ in found] == [(2, 0)]


@pytest.mark.parametrize("read", [read_header, lambda path: StatusFile(path).read()])
def test_reading_a_pipe_does_not_block(folder, read):
    """A plain open would block, because no process ever opens the pipe for writing."""
    os.mkfifo(folder.path / "pipe")
    with pytest.raises(ProtocolError, match="is not JSON"):
        read(folder.path / "pipe")


def test_error_file_that_is_a_pipe_is_ignored(folder):
    os.mkfifo(folder.path / "pipe")
    assert read_error_file(folder.path / "pipe") is None


# -- status ----------------------------------------------------------------------------------------

STATUS = json.loads(render_status(make_first_status(make_job())))
MALFORMED = {
    "no JSON": b"{",
    "deep": b'{"phase": %s}' % DEEP,
    "less deep": json.dumps({**STATUS, "x": 0})[:-2].encode() + LESS_DEEP + b"}",
    "digits": b'{"attempt": %s}' % MANY_DIGITS,
    "a list": b"[]",
    "nothing": b"",
    "no phase": json.dumps({**STATUS, "phase": "nonsense"}).encode(),
    "many ranks": json.dumps({**STATUS, "num_ranks": 10**12}).encode(),
    "negative": json.dumps({**STATUS, "num_nodes": -1}).encode(),
    "attempt": json.dumps({**STATUS, "attempt": 10**30}).encode(),
    "year": json.dumps({**STATUS, "created_at_s": 1e308}).encode(),
    "no time": json.dumps({**STATUS, "created_at_s": float("nan")}).encode(),
    "no end": json.dumps({**STATUS, "ended_at_s": float("inf")}).encode(),
    "rank": json.dumps({**STATUS, "ranks": [{"rank": "x", "node": None}]}).encode(),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_status_is_refused(what, memory_limit):
    with pytest.raises(ProtocolError):
        read_status(MALFORMED[what])


def test_client_follows_past_malformed_statuses(tmp_path, caplog):
    """A real connection to a real server copies from a folder where malformed statuses appear."""

    async def visit(scene):
        folder = JobFolder(tmp_path / "client")
        folder.path.mkdir()
        line = LeadSync(JOB, folder, lambda: connect_lead(scene.port, scene.files))
        scene.folder.make_attempt(0)

        async def copy_a_line() -> None:
            with scene.folder.log(0, 0).open("ab") as file:
                file.write(b"2026-01-31T12:00:00.123456Z stdout F a line\n")
            size = scene.folder.log(0, 0).stat().st_size
            log = folder.log(0, 0)
            await until(lambda: log.exists() and log.stat().st_size == size, "new lines are copied")

        await until(line.is_synced.is_set, "the first status")
        first = folder.status.read_bytes()
        for text in MALFORMED.values():
            write_atomically(scene.folder.status, text)
            await copy_a_line()  # the copy that has the status may be this one or the one before
            await copy_a_line()
            assert folder.status.read_bytes() == first
        good = render_status(replace(make_first_status(make_job()), phase=Phase.RUNNING))
        write_atomically(scene.folder.status, good)
        await until(lambda: folder.status.read_bytes() == good, "the next valid status")
        assert caplog.text.count("its status is ignored") >= 5
        await asyncio.to_thread(line.close)

    run_lead_server(tmp_path, visit)


SPOIL = """
import os, time
from pathlib import Path

[status] = Path(os.environ["WINDLASS_HOME"]).glob("jobs/*/status.json")
status.write_bytes(b"{" * 1000)
print("spoilt", flush=True)
while not Path("go").exists():
    time.sleep(0.01)
"""


def test_client_follows_past_a_status_overwritten_by_a_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spoil.py").write_text(SPOIL)
    job = wl.submit("spoil.py")
    for line in job.logs(follow=True):
        if line.text == "spoilt":
            assert not job.status().phase.is_final
            (tmp_path / "go").touch()
    assert job.wait(60).phase is Phase.SUCCEEDED


# -- files that ranks write ------------------------------------------------------------------------


def test_first_line_of_result_is_bounded(folder, memory_limit):
    path = folder.result(0, 0)
    with path.open("wb") as file:
        file.truncate(1 << 32)  # four gigabytes without a newline
    with pytest.raises(ProtocolError, match="is not a result file"):
        read_header(path)


@pytest.mark.parametrize("line", [DEEP, b'{"rank": %s}' % MANY_DIGITS, b"", b"[]", b"\xff"])
def test_malformed_result_is_refused(folder, line):
    folder.result(0, 0).write_bytes(line + b"\n")
    with pytest.raises(ProtocolError):
        read_header(folder.result(0, 0))


def test_error_in_result_is_truncated(folder):
    """Outcomes go into frames and into the status, which every client reads."""
    error = ErrorInfo(type="x" * 10**6, message="y" * 10**6, traceback="z" * 10**6)
    header = ResultHeader(rank=0, attempt=0, state="raised" * 10**5, at_s=0.0, error=error)
    write_result(folder.result(0, 0), header, b"")
    outcome = read_header(folder.result(0, 0)).outcome()
    assert len(json.dumps(records.to_json(outcome))) < 50_000


@pytest.mark.parametrize("text", [DEEP, b'{"message": %s}' % DEEP, b'{"message": ' + MANY_DIGITS])
def test_malformed_error_file_is_ignored(folder, text):
    folder.error(0, 0).write_bytes(text)
    assert read_error_file(folder.error(0, 0)) is None


def test_large_error_file_is_ignored(folder, memory_limit):
    with folder.error(0, 0).open("wb") as file:
        file.truncate(1 << 32)
    assert read_error_file(folder.error(0, 0)) is None


def test_long_message_in_error_file_is_truncated(folder):
    folder.error(0, 0).write_text(
        json.dumps({"message": {"message": "ValueError: " + "x" * 10**6}})
    )
    assert len(read_error_file(folder.error(0, 0)).message) == 4_000


def test_folders_that_are_not_attempts_are_ignored(folder):
    for name in ("attempt-²", "attempt-" + "9" * 200, "attempt--1", "attempt-x"):
        (folder.path / name).mkdir()
    assert folder.attempts() == [0]


@pytest.mark.parametrize(
    "text",
    [DEEP, b"{}", b"[1]", b'[{"index":0,"name":"n","first_rank":0,"num_ranks":999999999999}]'],
)
def test_malformed_world_is_refused(folder, text):
    folder.world(0).write_bytes(text)
    with pytest.raises(ProtocolError):
        read_world(folder, make_job(), 0)


def test_log_without_newline_takes_no_memory(folder, memory_limit):
    path = folder.log(0, 0)
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\n2026-01-31T12:00:00.123456Z stdout F the end\n")
    log = RankLog(path, 0, 0, 0, offset=(1 << 30) - (300 << 20))
    assert [line.text for line in log] == ["the end"]


def test_deeply_nested_result_is_shown_as_text():
    value: list = []
    for _ in range(500):
        value = [value]
    assert describe_value(value)[1:] == (False, None)
    assert describe_value([[1]])[1:] == (True, [[1]])


def test_results_larger_than_memory_are_listed(tmp_path, home):
    """The summary is in the first line of each file. Only a caller that needs the values reads the rest."""
    job = wl.submit(work.rank, procs=2)
    assert job.results(timeout_s=60) == [0, 1]
    for path in (home / "jobs" / job.id / "attempt-0").glob("*.result"):
        with path.open("r+b") as file:
            file.truncate(8 << 30)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30));"
        "from windlass.cli.main import main; sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "result", job.id, "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [row["value"] for row in json.loads(ran.stdout)["results"]] == [0, 1]
    assert [header.json for header in job.outcomes()] == [0, 1]
