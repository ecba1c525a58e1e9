"""Attack: two interleaved uploads of the same file, one of them forged.

The digest in the plan decides: the first complete upload that matches it is taken.
"""

from __future__ import annotations

import hashlib

import pytest
from pod_connections import make_job, run_lead_server, send
from tls_peers import until

from windlass import names
from windlass.plan.plan import Input

GOOD = bytes(range(256)) * 40
EVIL = b"e" * len(GOOD)
PIECE = 1024


def _plan():
    digest = hashlib.sha256(GOOD).hexdigest()
    return make_job(inputs=(Input(name=names.PAYLOAD_FILE, size_bytes=len(GOOD), sha256=digest),))


def _put(client, data: bytes, start: int) -> None:
    send(
        client, names.PAYLOAD_FILE, data[start : start + PIECE],
        offset=start, total_bytes=len(data),
    )  # fmt: skip


@pytest.mark.parametrize("evil_first", [True, False])
def test_pieces_of_two_uploads_are_never_mixed(tmp_path, evil_first):
    async def visit(scene):
        good, evil = [await scene.visit(None, has={}) for _ in range(2)]
        for start in range(0, len(GOOD), PIECE):
            turns = [(good, GOOD), (evil, EVIL)]
            for client, data in reversed(turns) if evil_first else turns:
                _put(client, data, start)
        await until(lambda: scene.folder.payload.exists(), "one is taken")
        await until(lambda: scene.lead.nodes.prepared() == [0], "the node has its input")
        assert scene.folder.payload.read_bytes() == GOOD
        # The forged upload was refused or came too late. Either way its parts are deleted.
        good.say("cancel")
        await until(lambda: good.find("ok"), "the honest client is still served")
        evil_parts = [p for p in scene.folder.path.glob(".payload*") if EVIL[:64] in p.read_bytes()]
        assert evil.has_hung_up or not evil_parts

    run_lead_server(tmp_path, visit, _plan(), is_ready=False)


def test_complete_forged_upload_is_refused(tmp_path):
    async def visit(scene):
        evil = await scene.visit(None, has={})
        send(evil, names.PAYLOAD_FILE, EVIL, total_bytes=len(EVIL))
        await until(lambda: evil.find("refused"), "it is refused")
        assert "differs from the one in the plan" in evil.find("refused")["why"]
        assert not scene.folder.payload.exists()
        good = await scene.visit(None, has={})
        send(good, names.PAYLOAD_FILE, GOOD, total_bytes=len(GOOD))
        await until(lambda: scene.lead.nodes.prepared() == [0], "the planned one is taken")
        assert scene.folder.payload.read_bytes() == GOOD

    run_lead_server(tmp_path, visit, _plan(), is_ready=False)


@pytest.mark.parametrize(
    "path", ["../escape", "/etc/cron.d/x", "attempt-0/../../x", "plan.json", "code/x.py", ""]
)
def test_only_planned_files_can_be_uploaded(tmp_path, path):
    async def visit(scene):
        evil = await scene.visit(None, has={})
        send(evil, path, b"x", total_bytes=1)
        await until(lambda: evil.find("refused"), "it is refused")
        assert not (tmp_path / "escape").exists()

    run_lead_server(tmp_path, visit, _plan(), is_ready=False)
