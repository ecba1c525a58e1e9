"""Requests against a server that misbehaves on demand: retries, deadlines, lost answers, and refusals."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest
from kube.api_server import Answer, connect_to, refuse, serve

from windlass.kube.client.api_errors import (
    ClusterError,
    ClusterPlace,
    Conflict,
    Forbidden,
    NotFound,
    Rejected,
    Unauthorized,
    Unreachable,
    read_refusal,
)
from windlass.kube.objects.kinds import JOBS, NODES, PODS, SECRETS
from windlass.names import ANNOTATION_SUBMIT

BUSY = refuse(503, "ServiceUnavailable", "starting")
TAKEN = refuse(409, "AlreadyExists", 'secrets "a" already exists')
OK = Answer(body={"metadata": {"name": "a"}})


def make_secret(submit: str = "") -> dict[str, object]:
    annotations = {ANNOTATION_SUBMIT: submit} if submit else {}
    return {"metadata": {"name": "a", "annotations": annotations}}


@pytest.mark.parametrize("trouble", [BUSY, refuse(500, "", "x"), Answer(cut=True)])
def test_request_is_retried(tmp_path: Path, trouble: Answer) -> None:
    with serve(trouble, trouble, OK) as server:
        assert connect_to(server.url, tmp_path).get(PODS, "a")["metadata"]["name"] == "a"
    assert [seen.path for seen in server.seen] == ["/api/v1/namespaces/space/pods/a"] * 3


def test_retry_after_is_respected(tmp_path: Path) -> None:
    with serve(refuse(429, "TooManyRequests", "later", Retry_After="1"), OK) as server:
        started_s = time.monotonic()
        connect_to(server.url, tmp_path).get(NODES, "n1")
    assert time.monotonic() - started_s >= 1.0
    assert server.seen[0].path == "/api/v1/nodes/n1"


def test_last_error_of_the_server_is_raised(tmp_path: Path) -> None:
    with (
        serve(BUSY) as server,
        pytest.raises(ClusterError, match=r"get pods/a.*: starting") as caught,
    ):
        connect_to(server.url, tmp_path, retry_for_s=0.5).get(PODS, "a")
    assert caught.value.code == 503
    assert caught.value.hint
    assert len(server.seen) > 1


def test_a_create_whose_answer_was_lost_finds_its_own_object(tmp_path: Path) -> None:
    there = Answer(body={"metadata": {"uid": "7", "annotations": {ANNOTATION_SUBMIT: "me"}}})
    with serve(Answer(cut=True), TAKEN, there) as server:
        made = connect_to(server.url, tmp_path).create(SECRETS, make_secret("me"))
    assert made["metadata"]["uid"] == "7"
    assert [seen.method for seen in server.seen] == ["POST", "POST", "GET"]


@pytest.mark.parametrize("mine", ["me", ""])
def test_object_of_another_submit_is_a_conflict(tmp_path: Path, mine: str) -> None:
    there = Answer(body={"metadata": {"uid": "7", "annotations": {ANNOTATION_SUBMIT: "other"}}})
    with serve(Answer(cut=True), TAKEN, there) as server, pytest.raises(Conflict):
        connect_to(server.url, tmp_path).create(SECRETS, make_secret(mine))


def test_conflict_at_the_first_try_is_raised(tmp_path: Path) -> None:
    with serve(TAKEN) as server, pytest.raises(Conflict, match="already exists"):
        connect_to(server.url, tmp_path).create(SECRETS, make_secret("me"))
    assert len(server.seen) == 1


def test_create_with_a_generated_name_is_not_retried(tmp_path: Path) -> None:
    with serve(Answer(cut=True), OK) as server, pytest.raises(Unreachable):
        connect_to(server.url, tmp_path).create(PODS, {"metadata": {"generateName": "a-"}})
    assert len(server.seen) == 1


def test_generated_name_is_retried_if_the_server_did_nothing(tmp_path: Path) -> None:
    with serve(refuse(429, "TooManyRequests", "later"), OK) as server:
        connect_to(server.url, tmp_path).create(PODS, {"metadata": {"generateName": "a-"}})
    assert len(server.seen) == 2


@pytest.mark.parametrize(("lost", "was_there"), [((), False), ((Answer(cut=True),), True)])
def test_delete_returns_whether_the_object_existed(
    tmp_path: Path, lost: tuple[Answer, ...], was_there: bool
) -> None:
    with serve(*lost, refuse(404, "NotFound", 'jobs "a" not found')) as server:
        assert connect_to(server.url, tmp_path).delete(JOBS, "a") is was_there
    assert server.seen[0].body == {"propagationPolicy": "Background"}


def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    first = Answer(body={"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "next"}})
    last = Answer(
        body={"items": [{"metadata": {"name": "b"}}], "metadata": {"resourceVersion": "9"}}
    )
    expired = refuse(410, "Expired", "too old")
    with serve(first, expired, first, last) as server:
        found = connect_to(server.url, tmp_path).list(
            PODS, labels="app=x", fields="spec.nodeName=n"
        )
    assert [thing["metadata"]["name"] for thing in found] == ["a", "b"]
    assert found[0]["kind"] == "Pod"
    assert server.seen[3].params["continue"] == "next"
    assert server.seen[3].params["labelSelector"] == "app=x"


def test_silent_server_times_out(tmp_path: Path) -> None:
    hold = threading.Event()
    with serve(Answer(lines=(), hold=hold)) as server:
        api = connect_to(server.url, tmp_path, retry_for_s=0.0)
        with pytest.raises(Unreachable, match=r"no answer within 0\.3 s") as caught:
            api.request("GET", "/version", timeout_s=0.3)
        hold.set()
    assert server.url in caught.value.message
    assert "context here" in caught.value.message


def test_connection_refused(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        api = connect_to(f"http://127.0.0.1:{free.getsockname()[1]}", tmp_path, retry_for_s=0.3)
        with pytest.raises(Unreachable, match="connection refused"):
            api.get(PODS, "a")


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    api = connect_to("https://no-such-host.invalid:6443", tmp_path, retry_for_s=0.0)
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid"):
        api.get(PODS, "a")


def test_a_login_page_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    with (
        serve(Answer(body=b"<html>please log in</html>")) as server,
        pytest.raises(ClusterError, match="not JSON: <html>please log in"),
    ):
        connect_to(server.url, tmp_path).get(PODS, "a")


def test_token_file_is_read_again_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    with serve(OK, refuse(401, "Unauthorized", "Unauthorized"), OK) as server:
        api = connect_to(server.url, tmp_path, user={"tokenFile": "token"})
        api.get(PODS, "a")
        token.write_text("new\n")
        api.get(PODS, "a")
    sent = [seen.headers["Authorization"] for seen in server.seen]
    assert sent == ["Bearer old", "Bearer old", "Bearer new"]


def test_an_expired_token(tmp_path: Path) -> None:
    with (
        serve(refuse(401, "Unauthorized", "Unauthorized")) as server,
        pytest.raises(Unauthorized, match="does not accept your login") as caught,
    ):
        connect_to(server.url, tmp_path, user={"token": "stale"}).get(PODS, "a")
    assert len(server.seen) == 1
    assert "log in again" in caught.value.hint


RBAC = (
    'secrets is forbidden: User "system:serviceaccount:x:me" cannot create resource "secrets" '
    'in API group "" in the namespace "x"'
)
QUOTA = 'pods "a" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
CRD = (
    'trainjobs is forbidden: User "u" cannot list resource "trainjobs" in API group "k.org" '
    "at the cluster scope"
)


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (refuse(403, "Forbidden", RBAC), Forbidden, "you may not create secrets in namespace x"),
        (refuse(403, "Forbidden", CRD), Forbidden, "you may not list trainjobs.k.org"),
        (refuse(403, "Forbidden", QUOTA), Rejected, "exceeded quota: q"),
        (refuse(400, "BadRequest", 'admission webhook "w" denied: no'), Rejected, 'webhook "w" denied'),
        (refuse(422, "Invalid", "spec.x: Required"), Rejected, "spec.x: Required"),
        (refuse(404, "NotFound", 'secrets "a" not found'), NotFound, 'secrets "a" not found'),
        (refuse(404, "NotFound", 'namespaces "b" not found'), NotFound, "namespace b not found"),
        (Answer(status=404, body=b"404 page not found\n"), NotFound, "does not serve it"),
        (refuse(403, "Forbidden", RBAC.replace("system:serviceaccount:x:me", "system:anonymous")),
         Unauthorized, "no login was sent"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, answer: Answer, kind: type[ClusterError], text: str) -> None:
    with serve(answer) as server, pytest.raises(kind) as caught:
        connect_to(server.url, tmp_path).create(SECRETS, make_secret())
    assert type(caught.value) is kind
    assert text in caught.value.message
    assert len(server.seen) == 1


def test_hint_for_a_missing_right(tmp_path: Path) -> None:
    with serve(refuse(403, "Forbidden", RBAC)) as server, pytest.raises(Forbidden) as caught:
        connect_to(server.url, tmp_path).create(SECRETS, make_secret())
    assert "windlass doctor -e kubernetes" in caught.value.hint


@pytest.mark.parametrize(("engine", "way_out"), [("trainjob", True), ("kubernetes", False)])
def test_unreachable_webhook_is_named_with_a_hint(engine: str, way_out: bool) -> None:
    why = 'failed to call webhook: Post "https://a/b": dial tcp: connect: connection refused'
    text = f'Internal error occurred: failed calling webhook "v.trainer.kubeflow.org": {why}'
    body = json.dumps({"message": text, "reason": "InternalError"}).encode()
    where = ClusterPlace(server="https://a", context="", engine=engine)
    error = read_refusal(500, body, description="create trainjobs/x", where=where)
    assert error.message == (
        f"could not create trainjobs/x: the cluster's webhook v.trainer.kubeflow.org did not respond: {why}"
    )
    assert error.retryable, "its operator may be on its way"
    assert "may be down" in error.hint
    assert ("--engine kubernetes" in error.hint) is way_out
