"""The folders here of jobs on clusters: made at a submit, and which cluster and namespace each job is in."""

from __future__ import annotations

import json
import os
from pathlib import Path

from windlass import names
from windlass.errors import EngineError
from windlass.kube.client.api import Api
from windlass.plan.plan import Plan, render_plan
from windlass.trusted import make_own
from windlass.wire.job_folder import JobFolder, write_atomically

_PLACE_FILE = "where.json"


def make_cluster_folder(
    home: Path, api: Api, plan: Plan, payload: bytes | None, bundle: Path | None
) -> JobFolder:
    """A job's folder below `home`, with its inputs; its plan last, since with that it is a job."""
    folder = JobFolder(home / plan.job_id)
    try:
        make_own(folder.path, below=home.parent, is_new=True)
        if payload is not None:
            folder.payload.write_bytes(payload)
        if bundle is not None:
            os.link(bundle, folder.bundle)
        keep_place(api, folder)
        write_atomically(folder.plan, render_plan(plan).encode())
    except FileExistsError as error:  # another process was faster
        raise EngineError(
            f"there is a job {plan.job_id} already", hint="prepare it anew: an id is used once"
        ) from error
    except OSError as error:
        raise EngineError(
            f"cannot keep the job in {folder.path}: {error.strerror or error}",
            hint=f"make it writable, or set {names.HOME} to another folder",
        ) from error
    return folder


def keep_place(api: Api, folder: JobFolder) -> None:
    """Note where a job is."""
    place = {"context": api.context, "namespace": api.namespace}
    (folder.path / _PLACE_FILE).write_text(json.dumps(place))


def read_place(home: Path, job_id: str) -> dict[str, str]:
    """Where a job is; empty texts for one that has no folder here."""
    try:
        place: dict[str, str] = json.loads((home / job_id / _PLACE_FILE).read_text())
    except (OSError, ValueError):
        return {"context": "", "namespace": ""}
    return place


def list_folders(home: Path) -> list[str]:
    """The ids of jobs that have a folder here, newest first."""
    places = sorted(home.glob(f"*/{_PLACE_FILE}"), key=lambda path: -path.stat().st_mtime)
    return [path.parent.name for path in places]
