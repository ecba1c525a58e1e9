"""Pods on machines that do not answer, of kinds that replace only a pod that has ended: ended from here.

Kubernetes asks such a pod to go, and waits for its machine to say that it has gone. The client that watches
the job ends it instead; without one it stays until the machine is back. Which kinds these are, and how their
pods end, is their dialect's.
"""

from __future__ import annotations

import logging
import time

from windlass.engines.dialects.dialect import Dialect
from windlass.engines.job_watch import JobWatch
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.diagnosis.pod_endings import is_taken_with_its_node
from windlass.kube.objects.fields import Object, condition_of, deleted_s, is_true, name_of, uid_of
from windlass.kube.objects.kinds import PODS

logger = logging.getLogger(__name__)

_EVERY_S = 2.0
_OVERDUE_S = 5.0  # a machine that answers ends a pod within its grace


class UnreachablePods:
    """Of one job; ended whenever somebody looks."""

    def __init__(self, api: Api, dialect: Dialect, sight: JobWatch) -> None:
        self._api = api
        self._end_status = dialect.end_lost_pod
        self._sight = sight
        self._looked_s = -_EVERY_S
        self._may = True

    def end(self) -> None:
        """End those that are there, so that others are made."""
        if self._end_status is None or not self._may or self._sight.away is not None:
            return
        if time.monotonic() - self._looked_s < _EVERY_S:
            return
        self._looked_s = time.monotonic()
        taken = [pod for pod in self._sight.pods if is_taken_with_its_node(pod)]
        for pod in taken:
            if self._is_unreachable(pod):
                self._end(pod)

    def _is_unreachable(self, pod: Object) -> bool:
        """By its node, where that may be read; else by its grace, which is over."""
        _, _, nodes = self._sight.read_around()
        for node in nodes:
            if name_of(node) == pod["spec"].get("nodeName"):
                return not is_true(condition_of(node, "Ready"))
        return time.time() > (deleted_s(pod) or time.time()) + _OVERDUE_S

    def _end(self, pod: Object) -> None:
        try:
            if self._end_status:
                self._api.patch(PODS, name_of(pod), self._end_status, part="status", brief=True)
            self._api.delete(PODS, name_of(pod), uid=uid_of(pod), grace_s=0)
        except Forbidden as error:
            self._may = False
            logger.debug("%s stays until its machine is back: %s", name_of(pod), error)
        except ClusterError as error:
            logger.debug("%s is not ended yet: %s", name_of(pod), error)
