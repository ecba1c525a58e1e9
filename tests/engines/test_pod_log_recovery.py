"""Recovery from the logs of ended pods, over a real HTTP server that answers like an API server."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace

import pytest
from kube.api_server import Answer, connect_to, refuse, serve
from kube.plans import make_pod_plan
from waits import wait_for

from windlass import names
from windlass.engines.cluster import job_recovery
from windlass.engines.cluster.job_recovery import has_unread, read_leftovers, read_unread
from windlass.engines.dialects.kubernetes import KUBERNETES, LABEL_INDEX
from windlass.kube.client.api_errors import Forbidden
from windlass.names import OMITTED_FILE
from windlass.wire.file_sync import find_files
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.last_word import render_last_word
from windlass.wire.log_lines import read_record
from windlass.wire.status import Phase, make_first_status, render_status

PLAN = make_pod_plan(nodes=2)
WHEN = b"2026-01-31T12:00:00.123456789Z "
ENDED = replace(make_first_status(PLAN), phase=Phase.SUCCEEDED)
STATUS = render_status(ENDED)
LOG_0, LOG_1 = "attempt-0/rank-0.log", "attempt-0/rank-1.log"
GONE = refuse(404, "NotFound", "pods not found")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job").mkdir()
    return JobFolder(tmp_path / "job")


def read_them(api, pods, folder):
    leads = [pod for pod in pods if KUBERNETES.index_of(pod) == 0]
    leads.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    read_leftovers(api, PLAN, pods, folder, leads=leads)


def read_unread_in_order(api, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_recovery, "_NUM_THREADS", 1)
        read_unread(api, folder)


def make_pod(index, name=None, created="2026-01-31T12:00:00Z"):
    return {
        "metadata": {
            "name": name or f"pod-{index}",
            "creationTimestamp": created,
            "labels": {LABEL_INDEX: str(index)},
        }
    }


def make_log(*lines):
    return Answer(body=b"".join(WHEN + line + b"\n" for line in lines))


def read(tmp_path, folder, pods, *answers):
    """Read the remaining files and logs, and return the requests to the API server."""
    with serve(*answers) as server:
        api = connect_to(server.url, tmp_path, retry_for_s=0.0)
        read_them(api, pods, folder)
        read_unread_in_order(api, folder)
        return [(seen.path.split("/")[-2], seen.params) for seen in server.seen]


def put(folder, path, data):
    (folder.path / path).parent.mkdir(exist_ok=True)
    write_atomically(folder.path / path, data)


def read_texts(folder, path):
    lines = (folder.path / path).read_bytes().splitlines()
    return [read_record(line).data for line in lines]


def test_last_word_and_log_of_every_pod_are_read(tmp_path, folder):
    # the reader knows the work, including its arguments
    recorded = render_status(replace(ENDED, work=""))
    files = {names.STATUS_FILE: recorded, "attempt-0/rank-0.result": b"value"}
    asked = read(
        tmp_path,
        folder,
        [make_pod(0), make_pod(1)],
        Answer(body=b"[rank 0] hello\n" + render_last_word(files)),
        make_log(b"[rank 0] hello", b"[rank 0] again", b"windlass-last-word 1/1 AAAA"),
        make_log(b"[rank 1] hello", b"[rank 1, attempt 2] once more"),
    )
    assert sorted(find_files(folder)) == sorted([*files, LOG_0, LOG_1, "attempt-2/rank-1.log"])
    assert folder.status.read_bytes() == STATUS
    assert folder.result(0, 0).read_bytes() == b"value"
    assert read_texts(folder, LOG_0) == [b"hello", b"again"]
    assert read_texts(folder, "attempt-2/rank-1.log") == [b"once more"]
    assert [pod for pod, _ in asked] == ["pod-0", "pod-0", "pod-1"]
    limit = {"limitBytes": str(64 << 20)}
    assert asked[0][1] == {"container": names.CONTAINER, "tailLines": "50", **limit}
    assert asked[1][1] == {"container": names.CONTAINER, "timestamps": "true", **limit}


def test_long_last_word_is_requested_again(tmp_path, folder):
    value = random.Random(0).randbytes(600_000)
    last_word = render_last_word({names.STATUS_FILE: STATUS, "attempt-0/rank-0.result": value})
    num_lines = last_word.count(b"\n")
    assert num_lines > 50
    end = b"".join(last_word.splitlines(keepends=True)[-50:])
    asked = read(
        tmp_path, folder, [make_pod(0)], Answer(body=end), Answer(body=last_word), Answer(body=b"")
    )
    assert asked[1][1]["tailLines"] == str(num_lines + 50)
    assert folder.result(0, 0).read_bytes() == value


def test_omitted_files_are_named(tmp_path, folder):
    files = {names.STATUS_FILE: STATUS, "attempt-0/rank-0.result": b"x" * 100}
    last_word = render_last_word(files, max_bytes=10)
    read(tmp_path, folder, [make_pod(0)], Answer(body=last_word), Answer(body=b""))
    omitted = json.loads((folder.path / OMITTED_FILE).read_bytes())
    assert omitted == {"attempt-0/rank-0.result": 100}


def test_last_word_of_the_newest_lead_that_wrote_one_counts(tmp_path, folder):
    pods = [
        make_pod(0, "second", "2026-01-31T13:00:00Z"),
        make_pod(0, "third", "2026-01-31T14:00:00Z"),
        make_pod(0, "first", "2026-01-31T12:00:00Z"),
    ]
    last_word = Answer(body=render_last_word({names.STATUS_FILE: STATUS}))
    asked = read(tmp_path, folder, pods, Answer(body=b"killed\n"), last_word, Answer(body=b""))
    assert [pod for pod, _ in asked] == ["third", "second", "second", "third", "first"]
    assert folder.status.read_bytes() == STATUS


def test_existing_files_are_not_overwritten(tmp_path, folder):
    put(folder, LOG_0, b"copied from the node\n")
    put(folder, "attempt-0/rank-0.result", b"whole")
    put(folder, names.STATUS_FILE, b'{"phase": "running"}')
    files = {names.STATUS_FILE: STATUS, "attempt-0/rank-0.result": b"half"}
    last_word = Answer(body=render_last_word(files))
    read(tmp_path, folder, [make_pod(0)], last_word, make_log(b"[rank 0] from the pod"))
    assert (folder.path / LOG_0).read_bytes() == b"copied from the node\n"
    assert folder.result(0, 0).read_bytes() == b"whole"
    assert folder.status.read_bytes() == STATUS  # the final status


def test_last_word_writes_only_expected_files(tmp_path, folder):
    files = {names.STATUS_FILE: STATUS, "../outside": b"x", "plan.json": b"x", "/etc/x": b"x"}
    last_word = Answer(body=render_last_word(files))
    read(tmp_path, folder, [make_pod(0)], last_word, Answer(body=b""))
    assert [path.name for path in folder.path.iterdir()] == [names.STATUS_FILE]
    assert not (tmp_path / "outside").exists()


def test_missing_pod_does_not_affect_others(tmp_path, folder, caplog):
    """A machine that is off makes only the logs of its own pods unavailable."""
    pods = [make_pod(0), make_pod(1)]
    read(tmp_path, folder, pods, GONE, GONE, make_log(b"[rank 1] still here"))
    assert read_texts(folder, LOG_1) == [b"still here"]
    assert "pods not found" in caplog.text


def test_missing_lead_does_not_affect_an_earlier_one(tmp_path, folder):
    pods = [make_pod(0, "first", "2026-01-31T12:00:00Z"), make_pod(0, "second")]
    pods[1]["metadata"]["creationTimestamp"] = "2026-01-31T14:00:00Z"
    last_word = Answer(body=render_last_word({names.STATUS_FILE: STATUS}))
    read(tmp_path, folder, pods, GONE, last_word, Answer(body=b""))
    assert folder.status.read_bytes() == STATUS


def test_missing_right_to_read_logs_raises(tmp_path, folder):
    reason = 'pods "pod-0" is forbidden: User "u" cannot get resource "pods/log" in API group ""'
    answer = refuse(403, "Forbidden", f'{reason} in the namespace "space"')
    with pytest.raises(Forbidden):
        read(tmp_path, folder, [make_pod(0)], answer)


def test_job_without_pods_has_no_logs(tmp_path, folder):
    assert read(tmp_path, folder, [], GONE) == []
    assert list(folder.path.iterdir()) == []


def left(folder):
    return json.loads((folder.path / names.UNREAD_FILE).read_bytes())


def test_logs_are_read_only_on_request(tmp_path, folder):
    """A job with a thousand pods has a thousand logs, but its status needs only one."""
    last_word = Answer(body=render_last_word({names.STATUS_FILE: STATUS}))
    with serve(last_word, make_log(b"[rank 0] hello"), make_log(b"[rank 1] hello")) as server:
        api = connect_to(server.url, tmp_path, retry_for_s=0.0)
        read_them(api, [make_pod(0), make_pod(1)], folder)
        assert len(server.seen) == 1
        assert folder.status.read_bytes() == STATUS
        assert (has_unread(folder), left(folder)) == (True, ["pod-0", "pod-1"])
        read_unread_in_order(api, folder)
        assert not has_unread(folder)
    assert read_texts(folder, LOG_1) == [b"hello"]


def test_only_logs_of_unreachable_nodes_are_requested_again(tmp_path, folder, caplog):
    away = refuse(500, "InternalError", "no route to host")
    lines = make_log(b"[rank 2] late")
    with serve(GONE, GONE, away, make_log(b"[rank 1] here"), lines) as server:
        api = connect_to(server.url, tmp_path, retry_for_s=0.0)
        read_them(api, [make_pod(0), make_pod(2), make_pod(1)], folder)
        read_unread_in_order(api, folder)
        assert left(folder) == ["pod-2"]
        assert "the logs of 1 of 3 pods cannot be read (could not get pods/pod-2/log" in caplog.text
        assert caplog.text.count("cannot be read") == 1, "logged once, not once per pod"
        read_unread(api, folder)
    assert not has_unread(folder)
    assert read_texts(folder, "attempt-0/rank-2.log") == [b"late"]


@pytest.mark.long
@pytest.mark.parametrize("num_pods", [1, 1000])
def test_silent_nodes_do_not_block_the_reader(tmp_path, folder, num_pods):
    held = threading.Event()

    def read_all(api):
        read_them(api, [make_pod(index) for index in range(num_pods)], folder)
        read_unread(api, folder)

    with serve(Answer(lines=(), hold=held)) as server:
        api = connect_to(server.url, tmp_path)
        reading = threading.Thread(target=read_all, args=(api,), daemon=True)
        reading.start()
        try:
            wait_for(lambda: not reading.is_alive(), "it is over, whatever nodes make_log", 10.0)
        finally:
            held.set()
    assert len(left(folder)) == num_pods
