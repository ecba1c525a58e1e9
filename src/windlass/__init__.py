"""Windlass runs a PyTorch function or script on any number of machines, unchanged.

    import windlass as wl
    results = wl.run(train, kwargs={"lr": 1e-3}, nodes=2, procs=4)

Public names are loaded when they are first used: importing this package imports nothing else.
"""

from __future__ import annotations

from windlass.names import VERSION

TYPE_CHECKING = False  # typing's own, without importing typing

__version__ = VERSION

_WHERE = {
    "run": "windlass.client.run",
    "submit": "windlass.client.run",
    "attach": "windlass.client.jobs",
    "jobs": "windlass.client.jobs",
    "Job": "windlass.client.job",
    "report": "windlass.agent.report",
    "Image": "windlass.client.warm.image",
    "images": "windlass.client.warm.image",
    "Secret": "windlass.client.warm.secret",
    "Volume": "windlass.client.warm.volume",
    "app": "windlass.client.warm.app",
    "Compute": "windlass.client.warm.compute",
    "compute": "windlass.client.warm.decorators",
    "cls": "windlass.client.warm.remote",
    "fn": "windlass.client.warm.remote",
    "get": "windlass.client.warm.named",
    "distribute": "windlass.client.warm.decorators",
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

    from windlass.agent.report import report as report
    from windlass.client.job import Job as Job
    from windlass.client.jobs import attach as attach
    from windlass.client.jobs import jobs as jobs
    from windlass.client.run import run as run
    from windlass.client.run import submit as submit
    from windlass.client.warm.app import app as app
    from windlass.client.warm.compute import Compute as Compute
    from windlass.client.warm.decorators import compute as compute
    from windlass.client.warm.decorators import distribute as distribute
    from windlass.client.warm.image import Image as Image
    from windlass.client.warm.image import images as images
    from windlass.client.warm.named import get as get
    from windlass.client.warm.remote import cls as cls
    from windlass.client.warm.remote import fn as fn
    from windlass.client.warm.secret import Secret as Secret
    from windlass.client.warm.volume import Volume as Volume
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


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'windlass' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(_WHERE[name])
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("windlass"):
            raise
        from windlass.inside import find_meaning

        if (meaning := find_meaning(name)) is not None:
            return meaning
        raise AttributeError(
            f"windlass.{name} is for clients; inside a node only windlass.report is there. "
            "Install windlass in the node's environment to use more."
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
