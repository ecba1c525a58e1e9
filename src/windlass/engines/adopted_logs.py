"""The logs of pods that run nothing of ours, merged by time: whole, or as they grow.

A pod's log comes from its node, with the times at which lines were written; lines are taken once, by those.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterator, Mapping

from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.objects.fields import Object, log_container_of, name_of
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.pod_log import read_line_time

logger = logging.getLogger(__name__)

_EVERY_S = 1.0  # how often nodes are asked while somebody follows
_OVERLAP_S = 30.0  # clocks of this machine and the nodes may differ by so much
_MAX_BYTES = 64 << 20


class AdoptedLogs:
    """The lines of one job's pods that answer a query; a pod has one stream, and is one rank."""

    def __init__(
        self,
        api: Api,
        find_pods: Callable[[], Mapping[int, Object]],
        query: LogQuery,
        *,
        container: str,
    ) -> None:
        self._api = api
        self._find_pods = find_pods
        self._query = query
        self._container = container
        self._read_s: dict[str, float] = {}  # the time of the last line of each pod
        self._asked_s = -_EVERY_S

    def read_all(self) -> Iterator[LogLine]:
        yield from self._read()

    def read_new(self) -> list[LogLine]:
        if time.monotonic() - self._asked_s < _EVERY_S:
            return []
        return self._read()

    def read_rest(self) -> list[LogLine]:
        """What was written between the last look and the end."""
        return self._read()

    def _read(self) -> list[LogLine]:
        self._asked_s = time.monotonic()
        wanted = (self._query.rank, self._query.node)
        pods = {
            index: pod
            for index, pod in self._find_pods().items()
            if all(one in (None, index) for one in wanted)
        }
        lines = [self._read_pod(index, pod) for index, pod in pods.items()]
        return [
            line
            for line in heapq.merge(*lines, key=lambda line: line.at_s)
            if self._query.wants(line)
        ]

    def _read_pod(self, index: int, body: Object) -> list[LogLine]:
        pod = name_of(body)
        last_s = self._read_s.get(pod)
        try:
            log = self._api.read_log(
                pod,
                container=log_container_of(body, self._container),
                timestamps=True,
                since_s=None if last_s is None else max(0.0, time.time() - last_s) + _OVERLAP_S,
                limit_bytes=_MAX_BYTES,
                is_patient=False,
            )
        except Forbidden:
            raise
        except ClusterError as error:  # it has not started, or is gone
            logger.debug("the log of %s: %s", pod, error)
            return []
        lines = []
        for line in log.split(b"\n"):  # a carriage return draws over a line, and ends none
            when, _, data = line.partition(b" ")
            at_s = read_line_time(when)
            if at_s is None or (last_s is not None and at_s <= last_s):
                continue
            self._read_s[pod] = at_s
            text = data.decode("utf-8", "backslashreplace").rpartition("\r")[2]
            lines.append(
                LogLine(at_s=at_s, node=index, rank=index, attempt=0, stream="stdout", text=text)
            )
        return lines
