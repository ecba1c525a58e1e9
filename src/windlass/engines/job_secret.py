"""What a job's Secret holds, read back by who did not make it, or not in this process: plan and keys.

Of a job that was submitted from here the authority is kept in its folder: a Secret that holds another one was
replaced by somebody, and is not used.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from windlass import names
from windlass.engines.lead_sync import keeping
from windlass.engines.protocol import JobRef
from windlass.errors import EngineError, JobNotFound, KeysReplaced
from windlass.kube.api import Api
from windlass.kube.api_errors import NotFound
from windlass.kube.kinds import JOBS, SECRETS
from windlass.kube.mounts import HIDDEN_KEY
from windlass.plan.plan import Plan, read_plan
from windlass.wire.identity import CA_CRT
from windlass.wire.job_folder import JobFolder, write_atomically


class BrokenSubmit(EngineError):
    """A job whose client went away before all its objects were made: it will never start."""


def pin(folder: JobFolder, certificates: Mapping[str, bytes]) -> None:
    """Remember by what a job that is submitted from here will be known."""
    with keeping(folder):
        write_atomically(folder.path / CA_CRT, certificates[CA_CRT])


def is_pinned(folder: JobFolder) -> bool:
    """Whether the job was submitted from here."""
    return (folder.path / CA_CRT).exists()


def fetch(api: Api, ref: JobRef, folder: JobFolder) -> tuple[Plan, Mapping[str, bytes]]:
    """Plan and certificates of a job that somebody submitted, here or elsewhere."""
    try:
        data = api.get(SECRETS, ref.job_id).get("data") or {}
    except NotFound:
        raise _not_found(api, ref) from None
    files = {
        name: base64.b64decode(content)
        for name, content in data.items()
        if not name.startswith(HIDDEN_KEY)  # for pods alone
    }
    if names.PLAN_FILE not in files:
        raise _not_found(api, ref)
    if is_pinned(folder) and (folder.path / CA_CRT).read_bytes() != files.get(CA_CRT):
        raise KeysReplaced(
            f"the keys of {ref.job_id} are not those that it was submitted with from here",
            hint=f"somebody has replaced its Secret: kubectl describe secret {ref.job_id}; "
            "do not use it, and submit it again",
        )
    return read_plan(files[names.PLAN_FILE].decode()), files


def _not_found(api: Api, ref: JobRef) -> EngineError:
    try:
        api.get(JOBS, ref.job_id)
    except NotFound:
        return JobNotFound(
            f"there is no job {ref.job_id!r} in namespace {api.namespace}",
            hint="windlass ls -e kubernetes shows what is there",
        )
    return BrokenSubmit(
        f"the submit of {ref.job_id} broke off before it was complete",
        hint=f"windlass rm {ref.job_id} removes what there is; then submit it again",
    )
