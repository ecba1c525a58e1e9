"""What a job's Secrets hold: made for its submit, and read back by clients that did not make it.

Of a job that was submitted from here the authority is kept in its folder: a Secret that holds another one was
replaced by somebody, and is not used.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.lead_sync import keeping
from windlass.engines.protocol import JobRef
from windlass.engines.pyz import build_archive, local_archive
from windlass.engines.secret_env import NO_HIDDEN
from windlass.engines.train_archive import build_train_archive, read_train_archive
from windlass.errors import EngineError, JobNotFound, KeysReplaced
from windlass.kube.certificates import make_certificates
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import NotFound
from windlass.kube.objects.fields import Object, labels_of
from windlass.kube.objects.kinds import SECRETS
from windlass.kube.objects.manifests import (
    HIDDEN_KEY,
    MAX_APPLIED_BYTES,
    MAX_SECRET_BYTES,
    JobFiles,
    cut_files,
)
from windlass.kube.objects.naming import read_job_id
from windlass.plan.plan import Plan, read_plan, render_plan
from windlass.wire.identity import CA_CRT
from windlass.wire.job_folder import JobFolder, write_atomically

MAX_INPUT_BYTES = 750_000  # payload and bundle; what is larger goes over the link
_QUEUE_S = 30 * 86400.0  # how long a job may wait for its pods before its certificates end
_NO_LIMIT_S = 10 * 365 * 86400.0  # of what may run for ever: its keys live and die with its Secret


class NotOurs(EngineError):
    """An object of a dialect's kind that something else than Windlass made."""


class BrokenSubmit(EngineError):
    """A job whose client went away before all its objects were made: it will never start."""

    def __init__(self, message: str, *, hint: str, body: Object) -> None:
        super().__init__(message, hint=hint)
        self.body = body  # the main object


def make_files(
    plan: Plan,
    payload: bytes | None,
    bundle: Path | None,
    *,
    is_export: bool = False,
    hidden: Mapping[str, str] = NO_HIDDEN,
) -> JobFiles:
    """Return what the Secrets hold: plan, agent, training library, and the inputs if they are small.

    An export has no byte code, and Secrets that `kubectl apply` can copy into an annotation.
    """
    own = {
        names.PLAN_FILE: render_plan(plan).encode(),
        **{f"{HIDDEN_KEY}{name}": value.encode() for name, value in hidden.items()},
    }
    large = {names.AGENT_FILE: build_archive() if is_export else _read_agent()}
    if names.TRAIN in plan.env:
        large[names.TRAIN_FILE] = build_train_archive() if is_export else read_train_archive()
    room = MAX_INPUT_BYTES
    if payload is not None and len(payload) <= room:
        large[names.PAYLOAD_FILE] = payload
        room -= len(payload)
    if bundle is not None and bundle.stat().st_size <= room:
        large[names.BUNDLE_FILE] = bundle.read_bytes()
    most_bytes = MAX_APPLIED_BYTES if is_export else MAX_SECRET_BYTES
    return JobFiles(own=own, parts=cut_files(large, most_bytes))


def _read_agent() -> bytes:
    """Return the agent with byte code, so that pods of this Python need not compile it."""
    return Path(local_archive()).read_bytes()


def make_job_certificates(plan: Plan) -> dict[str, bytes]:
    """A CA for this job alone, whose own key nobody keeps, and what it signed."""
    valid_s = _NO_LIMIT_S if plan.timeout_s is None else _QUEUE_S + plan.timeout_s
    return make_certificates(plan.job_id, now_s=plan.created_at_s, valid_s=valid_s)


def pin(folder: JobFolder, certificates: Mapping[str, bytes]) -> None:
    """Remember by what a job that is submitted from here will be known."""
    with keeping(folder):
        write_atomically(folder.path / CA_CRT, certificates[CA_CRT])


def is_pinned(folder: JobFolder) -> bool:
    """Whether the job was submitted from here."""
    return (folder.path / CA_CRT).exists()


def fetch(
    api: Api, dialect: Dialect, ref: JobRef, folder: JobFolder
) -> tuple[Plan, Mapping[str, bytes]]:
    """Plan and certificates of a job that somebody submitted, here or elsewhere, as a dialect's object."""
    try:
        data = api.get(SECRETS, ref.job_id).get("data") or {}
    except NotFound:
        raise _not_found(api, dialect, ref) from None
    files = {
        name: base64.b64decode(content)
        for name, content in data.items()
        if not name.startswith(HIDDEN_KEY)  # for pods alone
    }
    if names.PLAN_FILE not in files:
        raise _not_found(api, dialect, ref)
    if is_pinned(folder) and (folder.path / CA_CRT).read_bytes() != files.get(CA_CRT):
        raise KeysReplaced(
            f"the keys of {ref.job_id} are not those that it was submitted with from here",
            hint=f"somebody has replaced its Secret: kubectl describe secret {ref.job_id}; "
            "do not use it, and submit it again",
        )
    return read_plan(files[names.PLAN_FILE].decode()), files


def _not_found(api: Api, dialect: Dialect, ref: JobRef) -> EngineError:
    kind = dialect.kind
    try:
        body = api.get(kind, dialect.make_name(ref.job_id))
    except NotFound:
        body = {}
    # of two jobs' ids one name may be made
    if not body or read_job_id(body) != ref.job_id:
        return JobNotFound(
            f"there is no job {ref.job_id!r} in namespace {api.namespace}",
            hint=f"windlass ls -e {ref.engine} shows what is there",
        )
    if names.LABEL_JOB not in labels_of(body):
        return NotOurs(
            f"the {kind.name} {ref.job_id} was not made by Windlass: there is no plan of it, and no result",
            hint=f"kubectl describe {kind.plural} {ref.job_id} shows what it is",
        )
    return BrokenSubmit(
        f"the submit of {ref.job_id} broke off before it was complete",
        hint=f"windlass rm {ref.job_id} removes what there is; then submit it again",
        body=body,
    )
