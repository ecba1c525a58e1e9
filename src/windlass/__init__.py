"""Windlass runs a PyTorch function or script on any number of machines, unchanged.

    import windlass as wl
    results = wl.run(train, kwargs={"lr": 1e-3}, nodes=2, procs=4)

Public names are loaded on first use. Importing this package imports none of the modules behind them.
"""

from __future__ import annotations

from windlass.names import VERSION

TYPE_CHECKING = False  # type checkers treat this as typing.TYPE_CHECKING, without the import

__version__ = VERSION

_WHERE = {
    "run": "windlass.client.jobs.run",
    "submit": "windlass.client.jobs.run",
    "attach": "windlass.client.jobs.find_jobs",
    "jobs": "windlass.client.jobs.find_jobs",
    "Job": "windlass.client.jobs.job",
    "report": "windlass.wire.rank_reports",
    "Image": "windlass.client.compute.resources.image",
    "images": "windlass.client.compute.resources.image",
    "Secret": "windlass.client.compute.resources.secret",
    "Volume": "windlass.client.compute.resources.volume",
    "app": "windlass.client.compute.deploy.app",
    "Compute": "windlass.client.compute.nodes.compute_handle",
    "compute": "windlass.client.compute.deploy.decorators",
    "cls": "windlass.client.compute.calls.remote",
    "fn": "windlass.client.compute.calls.remote",
    "get": "windlass.client.compute.deploy.deployment",
    "distribute": "windlass.client.compute.deploy.decorators",
    **dict.fromkeys(
        (
            "BundleError",
            "EngineError",
            "JobCancelled",
            "JobError",
            "JobNotFound",
            "JobTimeout",
            "NodeLost",
            "ProtocolError",
            "RankFailed",
            "RemoteError",
            "SpecError",
            "StepFailed",
            "WaitTimeout",
            "WindlassError",
        ),
        "windlass.errors",
    ),
}

__all__ = ["__version__", *sorted(_WHERE)]

if TYPE_CHECKING:
    from typing import Any

    from windlass.client.compute.calls.remote import cls as cls
    from windlass.client.compute.calls.remote import fn as fn
    from windlass.client.compute.deploy.app import app as app
    from windlass.client.compute.deploy.decorators import compute as compute
    from windlass.client.compute.deploy.decorators import distribute as distribute
    from windlass.client.compute.deploy.deployment import get as get
    from windlass.client.compute.nodes.compute_handle import Compute as Compute
    from windlass.client.compute.resources.image import Image as Image
    from windlass.client.compute.resources.image import images as images
    from windlass.client.compute.resources.secret import Secret as Secret
    from windlass.client.compute.resources.volume import Volume as Volume
    from windlass.client.jobs.find_jobs import attach as attach
    from windlass.client.jobs.find_jobs import jobs as jobs
    from windlass.client.jobs.job import Job as Job
    from windlass.client.jobs.run import run as run
    from windlass.client.jobs.run import submit as submit
    from windlass.errors import BundleError as BundleError
    from windlass.errors import EngineError as EngineError
    from windlass.errors import JobCancelled as JobCancelled
    from windlass.errors import JobError as JobError
    from windlass.errors import JobNotFound as JobNotFound
    from windlass.errors import JobTimeout as JobTimeout
    from windlass.errors import NodeLost as NodeLost
    from windlass.errors import ProtocolError as ProtocolError
    from windlass.errors import RankFailed as RankFailed
    from windlass.errors import RemoteError as RemoteError
    from windlass.errors import SpecError as SpecError
    from windlass.errors import StepFailed as StepFailed
    from windlass.errors import WaitTimeout as WaitTimeout
    from windlass.errors import WindlassError as WindlassError
    from windlass.wire.rank_reports import report as report


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(_WHERE[name])
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("windlass"):
            raise
        from windlass.rank_stubs import find_stub

        if (stub := find_stub(name)) is not None:
            return stub
        raise AttributeError(
            f"windlass.{name} is available only in clients: a node without windlass installed has only "
            f"windlass.report. Install windlass in the node's environment to use windlass.{name}."
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
