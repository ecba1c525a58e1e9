"""Rank that takes calls: waits for a call, runs it, answers, and waits for the next one or exits.

The environment of the rank is set before this module runs, so user code sees the same environment as in
any rank. A fresh rank exits after its call. A kept rank stays, with the state of the user's code. Both report
only through their answers.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from windlass import names
from windlass.agent.link.rank_channel import RankEnd
from windlass.agent.rank.rank_main import make_main, prefer_user_modules, set_argv
from windlass.agent.rank.rank_outcome import make_error, read_exit_code, report_uncaught
from windlass.agent.rank.reload import Reloader, import_freshly, renew_class
from windlass.agent.rank_process import INTERRUPTED
from windlass.errors import BundleError
from windlass.frameworks.framework import load_framework
from windlass.records import find_fields
from windlass.wire import call_targets, payloads
from windlass.wire.messages.computes import (
    NODE_TO_RANK,
    CallAnswer,
    CallItem,
    MakeObject,
    RunCall,
)
from windlass.wire.messages.forkserver import CallRankSetup
from windlass.wire.states import RankState

_AHEAD_BYTES = 4 << 20  # bytes of a stream that the rank sends before it waits for its readers
_ITEM_BYTES = 1 << 10  # overhead of an item in addition to its own bytes

for _kind in NODE_TO_RANK.kinds.values():
    # cached in the fork server, because ranks unload Windlass before they read a message
    find_fields(_kind)


def serve(fd: int, about: CallRankSetup) -> int:
    """Take calls until the node hangs up. Return the exit code.

    `about` holds the project's folder and whether the rank is kept after a call.
    """
    importlib.import_module("cloudpickle")  # the bundled version, which also created the payloads
    return _Callee(RankEnd(fd), about).loop()


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        what = f"{error.strerror}: {folder} (working_dir, or the folder of the call)"
        raise BundleError(what) from error


class _Callee:
    """Loop that receives and runs the calls of one rank."""

    def __init__(self, end: RankEnd, about: CallRankSetup) -> None:
        self._end = end
        self._rank = int(os.environ[names.RANK])
        self._about = about
        self._reloader = Reloader(about.root)
        self._object: Any = None
        self._is_command = False
        self._constructor: list[memoryview] | None = None
        self._framework = load_framework(about.framework)  # before `prefer_user_modules` unloads it
        if about.cwd:
            _enter(about.cwd)
        prefer_user_modules(about.paths)
        import_freshly([about.root, *about.paths])
        make_main()
        if self._framework.cluster is not None:
            self._framework.cluster.prepare()

    def loop(self) -> int:
        code = 0
        while (received := self._end.receive()) is not None:
            message, body = received
            if isinstance(message, MakeObject):
                self._constructor = payloads.cut(body, message.sizes)
            if not isinstance(message, RunCall):
                continue
            code = self._take(message, body)
            del message, body, received  # free the call's arguments before the next call
            if not self._about.keep:
                if self._framework.cluster is not None:
                    self._framework.cluster.leave()
                self._end.wait_for_hangup(self._about.peer_wait_s)
                break
        return code

    def _take(self, order: RunCall, body: bytes) -> int:
        """Run one call and answer it. Return the exit code to use if this was the last call."""
        set_argv([order.name])
        for file, text in order.sources.items():  # source lines for tracebacks
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        self._part, self._num_stores = order.part, 0
        if order.meeting:
            self._set_rendezvous(order.meeting)
        try:
            segments = self._segments(order, body)
            value = self._perform(order, segments)
            if inspect.iscoroutine(value):
                import asyncio

                value = asyncio.run(value)
            if order.stream:
                value = self._stream(order, value)
            is_wanted = order.collect == "all" or self._rank == 0
            packed = payloads.pack(value, name="result") if is_wanted else []
            self._answer(order, packed, state=RankState.RETURNED)
        except BaseException as error:  # noqa: BLE001 - any exception of the user's code is the answer
            raised = self._framework.explain(error)
        else:
            return 0
        try:
            return self._raised(order, raised)
        finally:
            del raised  # breaks the reference cycle between the exception and this frame

    def _set_rendezvous(self, rendezvous: Mapping[str, str]) -> None:
        """Set the rendezvous variables of this world's ranks."""
        os.environ.update(rendezvous)
        if self._framework.store is not None:
            self._framework.store.share(rendezvous, self._name_part)
        if self._framework.cluster is not None:
            self._framework.cluster.meet()

    def _name_part(self) -> str:
        """Return the name of the next part of the compute's store that this call uses."""
        self._num_stores += 1
        return f"{self._part}/{self._num_stores}"

    @staticmethod
    def _segments(order: RunCall, body: bytes) -> list[memoryview]:
        whole = payloads.map_file(order.file) if order.file else body
        return payloads.cut(whole, order.sizes)

    def _perform(self, order: RunCall, segments: list[memoryview]) -> Any:
        reloader = self._reloader
        is_due = order.reload or reloader.is_broken
        is_due = is_due or (order.is_watched and reloader.has_linked_edits())
        if is_due and reloader.reload() and self._object is not None:
            renew_class(self._object, sys.modules.get)
        if self._constructor is not None:
            self._object = self._call(*payloads.unpack(self._constructor))
            self._constructor = None  # kept if it raised, so that the next call retries it
        if order.method:
            args, kwargs = payloads.unpack(segments)
            member = getattr(self._object, order.method)
            value = self._call(member, args, kwargs) if callable(member) else member
        else:
            function, args, kwargs = payloads.unpack(segments)
            self._is_command = type(function).__module__ == call_targets.__name__
            value = self._call(function, args, kwargs)
        return value

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._framework.fill(function, args, kwargs)
        return function(*args, **kwargs)

    def _stream(self, order: RunCall, value: Any) -> Any:
        """Send the items of rank 0's generator as it yields them, and return its return value."""
        if not isinstance(value, Iterator):
            raise TypeError(
                f"stream=True requires a generator, but the call returned {value!r:.80}"
            )
        if self._rank != 0:
            return None
        ahead = 0
        while True:
            try:
                item = next(value)
            except StopIteration as end:
                return end.value
            packed = payloads.pack(item, name="item")
            ahead += _ITEM_BYTES + sum(map(len, packed))
            sizes = [len(segment) for segment in packed]
            is_far_ahead = ahead > _AHEAD_BYTES
            self._send(
                CallItem(call=order.id, sizes=sizes, at_s=time.time(), waits=is_far_ahead), packed
            )
            if is_far_ahead:
                ahead = 0
                self._end.receive()  # "more": the reader has caught up

    def _raised(self, order: RunCall, error: BaseException) -> int:
        if isinstance(error, SystemExit):
            return self._exited(order, error)
        if (
            isinstance(error, BundleError) or self._is_command
        ):  # a traceback would show only Windlass's frames
            sys.stderr.write(f"{error}\n")
        else:
            report_uncaught(error, is_last=not self._about.keep)
        try:
            packed = payloads.pack(error, name="exception")
        except BundleError:
            packed = []
        info = make_error(error, root=self._about.root)
        self._answer(order, packed, state=RankState.RAISED, error=info)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1

    def _exited(self, order: RunCall, error: SystemExit) -> int:
        """Handle SystemExit as Python does. No code means success. A text is printed and means failure."""
        code = read_exit_code(error)
        if code == 0:
            self._answer(order, payloads.pack(None, name="result"), state=RankState.RETURNED)
            return 0
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
        info = make_error(error, root=self._about.root)
        self._answer(order, [], state=RankState.EXITED, exit_code=code, error=info)
        return code

    def _answer(
        self, order: RunCall, segments: list[payloads.Segment], *, state: RankState, **fields: Any
    ) -> None:
        sizes = [len(segment) for segment in segments]
        answer = CallAnswer(call=order.id, sizes=sizes, at_s=time.time(), state=state, **fields)
        try:
            self._send(answer, segments)
        except OSError as error:
            what = f"cannot write the result of {sum(sizes)} bytes: {error.strerror}"
            info = make_error(OSError(error.errno, what), root=self._about.root)
            self._send(answer.replaced(state=RankState.RAISED, error=info, sizes=[]), [])

    def _send(self, message: CallAnswer | CallItem, segments: list[payloads.Segment]) -> None:
        """Send an answer or an item. Raise OSError if it needs a file that cannot be written."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        if sum(message.sizes) > payloads.SPILL_BYTES:
            file = payloads.write_file(self._about.spill, segments)
            message, segments = message.replaced(file=file), []
        self._end.send(message, segments)
