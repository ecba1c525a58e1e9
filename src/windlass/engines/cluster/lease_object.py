"""Lease of a job as a cluster object: a Job without pods that owns other objects of the job.

A Job with zero completions completes immediately. Kubernetes deletes it after its time to live, and
then garbage-collects the objects that it owns. Abandoned jobs are therefore cleaned up although no
program of Windlass runs in the cluster:

- During a submission, the lease owns the objects that could otherwise run without their client: a
  prerequisite, or else objects in a queue and objects that start immediately. The last patch of the
  submit removes the owner reference, and the client deletes the lease.
- Objects whose pods keep running after the job has ended keep their lease while the job is
  attached. Each client that holds the job's lease extends it. The client that removes the job
  deletes it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, NotFound
from windlass.kube.objects.fields import created_s
from windlass.kube.objects.kinds import JOBS
from windlass.kube.objects.manifests import make_metadata, pod_of
from windlass.kube.objects.pod_template import CONTAINER_SECURITY, make_pod_security
from windlass.plan.plan import Plan

logger = logging.getLogger(__name__)

_SLACK_S = 120.0  # clocks differ, and a renewal may fail twice
_RENEW_S = 40.0


def is_leased(dialect: Dialect, plan: Plan) -> bool:
    """Return whether a submission needs a lease, to clean up if the client is killed meanwhile."""
    is_queued = bool(pod_of(plan).queue)  # Kueue may start it before its Secret exists
    return is_queued or dialect.stays_up or dialect.prerequisite is not None


def owns_main(dialect: Dialect, plan: Plan) -> bool:
    """Return whether the lease owns the main object, and not only its prerequisite.

    Kubernetes deletes a lease in the foreground: it deletes the dependents first, and then removes a
    finalizer from the lease. If both were dependents, a TrainJob could lose its runtime first. It would
    then reject every change and could never be deleted.
    """
    return is_leased(dialect, plan) and dialect.prerequisite is None


def keeps_lease(dialect: Dialect, plan: Plan) -> bool:
    """Return whether the lease owns the object until the job ends."""
    return dialect.stays_up and not plan.detach


def lease_name(plan: Plan) -> str:
    """Return the name of a job's lease. A later job with the same id gets another name."""
    return f"{plan.job_id}-lease-{int(plan.created_at_s * 1000) & 0xFFFFF:05x}"


def make_lease(plan: Plan, submit: str) -> dict[str, Any]:
    """Return the lease of a job. Kubernetes requires its pod template, but never creates a pod."""
    annotations = {names.ANNOTATION_SUBMIT: submit}
    metadata = make_metadata(plan, lease_name(plan), annotations=annotations)
    # these labels would list it as a job or make it wait in a queue
    for label in (names.LABEL_JOB, names.LABEL_QUEUE):
        metadata["labels"].pop(label, None)
    pod = pod_of(plan)
    container = {
        "name": names.CONTAINER,
        "image": pod.image,
        "command": ["true"],
        "securityContext": CONTAINER_SECURITY,
    }
    template = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": make_pod_security(pod),
        "containers": [container],
    }
    spec = {
        "completions": 0,
        "parallelism": 0,
        "ttlSecondsAfterFinished": math.ceil(plan.lease_s + _SLACK_S),
        "template": {"spec": template},
    }
    return {"apiVersion": JOBS.api_version, "kind": JOBS.name, "metadata": metadata, "spec": spec}


def delete_lease(api: Api, plan: Plan) -> None:
    """Delete a lease that is no longer needed. If that fails, its time to live removes it."""
    with contextlib.suppress(ClusterError):
        api.delete(JOBS, lease_name(plan))


class LeaseRenewal:
    """Thread that extends the lease of one job while this client holds it."""

    def __init__(self, api: Api, plan: Plan) -> None:
        self._api = api
        self._plan = plan
        self._lock = threading.Lock()
        self._stop: threading.Event | None = None

    def hold(self, held: bool) -> None:
        """Start or stop the renewals."""
        with self._lock:
            if self._stop is not None:
                self._stop.set()
            self._stop = threading.Event() if held else None
            if self._stop is not None:
                threading.Thread(
                    target=self._renew, args=(self._stop,), name="windlass-lease", daemon=True
                ).start()

    def _renew(self, stop: threading.Event) -> None:
        name, is_known = lease_name(self._plan), False
        body: dict[str, Any] = {}
        while not stop.is_set():
            try:
                if is_known:
                    age_s = time.time() - created_s(body)
                    ttl_s = math.ceil(max(0.0, age_s) + self._plan.lease_s + _SLACK_S)
                    changed = {"spec": {"ttlSecondsAfterFinished": ttl_s}}
                    self._api.patch(JOBS, name, changed, brief=True)
                else:
                    # an empty patch reads the lease, with only the right that renewals need anyway
                    body, is_known = self._api.patch(JOBS, name, {}, brief=True), True
                    continue
            except NotFound:
                return  # the job never had a lease, or has ended
            except ClusterError as error:
                logger.debug("cannot renew lease %s: %s", name, error)
            stop.wait(_RENEW_S)
