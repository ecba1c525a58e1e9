"""fn and cls: run functions and classes of this process on a compute, called as if they were local.

    remote = fn(train).to(compute).distribute("pytorch", workers=4)
    results = remote(lr=1e-3)

`client.compute.calls.call_requests` makes the calls. `client.compute.calls.client_call` exchanges their
messages with the lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.client.compute.calls.call_requests import Requests
from windlass.client.compute.calls.callable_work import Options, Work, make_options, make_work
from windlass.client.compute.calls.client_call import ClientCall, Reply
from windlass.client.compute.nodes.compute_handle import Compute
from windlass.client.compute.nodes.distribution import Distribution, default_framework, make_spread
from windlass.client.compute.nodes.live_nodes import LiveNodes
from windlass.client.jobs.job import Job
from windlass.client.keywords import CALL, DISTRIBUTE_MORE, show_keywords
from windlass.client.terminal import LogEcho
from windlass.errors import SpecError
from windlass.rank_stubs import Plain, is_inside
from windlass.wire import call_targets

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from windlass.client.keyword_types import CallKeywords, OtherDistributeKeywords

_CALL_OPTIONS = ("timeout", "stream", "collect", "ranks")


@show_keywords(CALL)
def fn(
    function: Callable[..., Any] | str, *, name: str = "", **options: Unpack[CallKeywords]
) -> Remote:
    """Return a remote function: send it `.to(compute)`, then call it as if it were local.

    function: the function, or a command as text, which runs once on every node.
    name: name of the deployed function (default: the function's own name).
    """
    if is_inside() and callable(function):  # a rank is importing the module with this call
        return Plain(function)  # type: ignore[return-value]
    return Remote(make_work(function, name=name), make_options(options))


@show_keywords(CALL)
def cls(
    target: type,
    *,
    name: str = "",
    init_args: Sequence[Any] | Mapping[str, Any] = (),
    **options: Unpack[CallKeywords],
) -> Remote:
    """Return a remote class: every rank holds an object, and methods are called as if it were local.

    target: the class.
    name: name of the deployed class (default: the class's own name).
    init_args: arguments of its constructor, as a list of values or a dict of keywords.
    """
    if is_inside():
        return Plain(target)  # type: ignore[return-value]
    if not inspect.isclass(target) and not getattr(target, "is_class", False):
        raise SpecError(
            f"cls takes a class, not {target!r:.60}", hint="use wl.fn(...) for functions"
        )
    if not isinstance(init_args, (Mapping, list, tuple)):
        raise SpecError(
            f"init_args must be a list or a dict, not {init_args!r:.60}", hint="use init_args=[5]"
        )
    args = () if isinstance(init_args, Mapping) else tuple(init_args)
    kwargs = dict(init_args) if isinstance(init_args, Mapping) else {}
    work = make_work(target, name=name, init=(args, kwargs))
    return _make_remote(work, make_options({"keep": "process", **options}))


def _make_remote(work: Work, options: Options) -> Remote:
    return (OwnMethods if work.clashes else Remote)(work, options)


class Remote:
    """Function or class that runs on a compute, returned by `fn`, `cls` and `get`.

    The methods of a remote class are its attributes. Each also has `submit` and `acall`.
    """

    def __init__(self, work: Work, options: Options) -> None:
        self._work = work
        self._options = options
        self._compute: Compute | None = None
        self._spread: Distribution | None = None
        self._requests: Requests | None = None
        # its description by the process that deployed it
        self._deployed: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        where = self._compute.name if self._compute else "nowhere yet"
        return f"<remote {self._work.name} on {where}>"

    @property
    def name(self) -> str:
        """Name under which it is deployed."""
        return self._work.name

    def _describe(self) -> dict[str, Any]:
        """Return how to call it, as plain data that `get` rebuilds it from."""
        spread, options = self._spread, self._options
        return {
            "compute": self._placed.name,
            "is_class": self._work.is_class,
            "is_command": self._work.is_command,
            "clashes": list(self._work.clashes),
            "has_call": self._work.has_call,
            "instance": self._work.instance,
            "spread": None if spread is None else dataclasses.asdict(spread),
            "options": {"collect": options.collect, "keep": options.keep},
            **self._make_requests().describe(),
        }

    @staticmethod
    def rebuild(target: Any, name: str, record: Mapping[str, Any], compute: Compute) -> Remote:
        """Rebuild a deployed remote from its description, which another process may have made."""
        work = Work(
            target=target,
            name=name,
            is_class=record["is_class"],
            is_command=record.get("is_command", False),
            instance=record["instance"],
            early=record.get("early", ""),
            clashes=tuple(record.get("clashes", ())),
            has_call=record.get("has_call", False),
        )
        made = _make_remote(work, Options(**record["options"]))
        spread = None if record["spread"] is None else Distribution(**record["spread"])
        return Remote._with(made, compute=compute, spread=spread, deployed=record)

    @property
    def compute(self) -> Compute:
        """Compute that it is on."""
        return self._placed

    @property
    def _placed(self) -> Compute:
        if self._compute is None:
            name = self._work.name
            raise SpecError(
                f"{name} is not on a compute yet", hint=f"use fn({name}).to(Compute(...))"
            )
        return self._compute

    # -- where it runs -------------------------------------------------------------------------

    def to(self, compute: Compute) -> Remote:
        """Return a copy on a compute. Starts the compute's nodes unless they are running.

        compute: the nodes to run on.
        """
        if not isinstance(compute, Compute):
            raise SpecError(
                f".to takes a Compute, not {compute!r:.60}", hint="use .to(Compute(gpus=1))"
            )
        spread = compute.spread or self._spread
        nodes = compute.nodes(self._work.label)
        nodes.bring_up(spread or Distribution(), self._work.preload)
        return self._with(compute=compute, spread=spread, deployed=None)

    @show_keywords(DISTRIBUTE_MORE)
    def distribute(
        self,
        framework: str = "",
        workers: int | str = 1,
        procs: int | None = None,
        **more: Unpack[OtherDistributeKeywords],
    ) -> Remote:
        """Return a copy that runs on several nodes. A node that is already running stays node 0.

        framework: framework of the ranks: pytorch, spmd, ray, monarch or command (default: the setting).
        workers: number of nodes, not counting ray's head. "2:4" means at least 2 and at most 4.
        procs: ranks per node (default: one per GPU, or 1).
        """
        spread = make_spread(framework or default_framework(), workers=workers, procs=procs, **more)
        if self._compute is not None:
            self._nodes().bring_up(spread, self._work.preload)
        return self._with(spread=spread)

    @show_keywords(CALL)
    def options(self, **options: Unpack[CallKeywords]) -> Remote:
        """Return a copy with other call options. Options that are not given stay unchanged."""
        return self._with(options=make_options(options, self._options))

    def _with(self, **changed: Any) -> Remote:
        other = copy.copy(self)
        for name, value in {"requests": None, **changed}.items():
            setattr(other, f"_{name}", value)
        return other

    def deploy(self) -> Remote:
        """Start it under its name, so that `get(name)` finds it from anywhere.

        Returns when its nodes, code and ranks are ready.
        """
        from windlass.client.compute.deploy.deployment import record_deployment

        idle = dataclasses.replace(
            self._work, target=call_targets.do_nothing, is_class=False, has_call=False
        )
        self._with(work=idle, options=Options(logs=False))()
        record_deployment(self._nodes(), self._work, self._describe())
        return self

    def teardown(self) -> None:
        """End the nodes of its compute."""
        self._placed.teardown()

    # -- calling -------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it and return one value, or after `.distribute` a list of the values of all ranks."""
        return self._call(self._own_method, args, kwargs)

    @property
    def _own_method(self) -> str:
        return "__call__" if self._work.has_call else ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._work.is_class:
            raise AttributeError(f"{self._work.name!r} has no attribute {name!r}")
        return Method(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"{name!r} cannot be set in the client: the object lives on its ranks; "
                "give the class a method that sets it"
            )
        super().__setattr__(name, value)

    def submit(self, *args: Any, **kwargs: Any) -> Job:
        """Start a call and return its job without waiting. The call continues after this process ends."""
        return self._submit(self._own_method, args, kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call it without blocking the event loop. Cancelling the wait ends the call."""
        return await self._acall(self._own_method, args, kwargs)

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, kwargs = self._split(method, kwargs)
        calling, echo = self._make(method, args, kwargs, options)
        calling.send()
        if options.stream:
            return self._stream(calling, echo)
        try:
            reply = calling.follow()
        except KeyboardInterrupt:
            calling.cancel("Ctrl-C in its client", interrupt=True)
            raise
        finally:
            echo.close()
            calling.release(
                is_broken=True
            )  # a connection that is still checked out is mid-conversation
        return self._unwrap(reply, options)

    async def _acall(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, kwargs = self._split(method, kwargs)
        calling, echo = self._make(method, args, kwargs, options)

        def follow() -> Reply:
            calling.send()
            return calling.follow()

        following = asyncio.ensure_future(asyncio.to_thread(follow))
        try:
            reply = await asyncio.shield(following)
        except asyncio.CancelledError:
            await asyncio.to_thread(calling.cancel, "its caller stopped waiting")
            with contextlib.suppress(Exception):
                await following
            raise
        finally:
            echo.close()
        return self._unwrap(reply, options)

    def _stream(self, calling: ClientCall, echo: LogEcho) -> Iterator[Any]:
        ended = False
        try:
            yield from calling.items()
            ended = True
        finally:
            echo.close()
            if not ended:
                calling.cancel("its reader stopped reading")
            calling.release(is_broken=True)
        error = calling.reply.error()
        if error is not None:
            raise error

    def _submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job:
        from windlass.client.compute.calls.call_job import CallJob

        options, kwargs = self._split(method, kwargs)
        calling, _ = self._make(method, args, kwargs, options, detach=True)
        calling.send()
        calling.wait_for_acceptance()
        return CallJob(self._nodes(), calling.id)

    def _make(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        *,
        detach: bool = False,
    ) -> tuple[ClientCall, LogEcho]:
        requests = self._make_requests()
        request = requests.make(method, args, kwargs, options, detach=detach)
        echo = LogEcho(num_ranks=requests.num_ranks, procs=requests.procs)
        show = echo.show if options.logs else lambda _rank, _data: None
        return ClientCall(self._nodes(), request, show), echo

    def _make_requests(self) -> Requests:
        if self._requests is None:
            self._requests = Requests(
                self._work, self._placed, self._nodes(), self._spread, deployed=self._deployed
            )
        return self._requests

    def _split(self, method: str, kwargs: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Split keywords into call options and function arguments. On a name clash, the function wins."""
        given: list[str] = [name for name in _CALL_OPTIONS if name in kwargs]
        if not given:
            return self._options, kwargs
        own = self._work.parameters(method)
        ours = {name: kwargs[name] for name in given if name not in own}
        left = {name: value for name, value in kwargs.items() if name not in ours}
        return (make_options(ours, self._options) if ours else self._options), left

    def _unwrap(self, reply: Reply, options: Options) -> Any:
        error = reply.error()
        if error is not None:
            raise error
        if options.collect == "head" or not self._make_requests().gives_list:
            return reply.value(0)
        return [reply.value(rank) for rank in sorted(reply.results)]

    def _nodes(self) -> LiveNodes:
        return self._placed.nodes(self._work.label)


class OwnMethods(Remote):
    """Remote class with methods that have the names of `Remote`'s. On a compute, the class's own win.

    Before `.to` there is no object, so `cls(C).options(...).distribute(...).to(compute)` uses the methods of
    `Remote`. `.to` with a Compute is always the method of `Remote`.
    """

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "to":
            is_placed = super().__getattribute__("_compute") is not None
            if is_placed and name in super().__getattribute__("_work").clashes:
                return Method(self, name)
        return super().__getattribute__(name)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Return a copy on a compute, or call the class's own method with other arguments."""
        is_ours = len(args) == 1 and not kwargs and isinstance(args[0], Compute)
        if is_ours or self._compute is None or "to" not in self._work.clashes:
            return super().to(*args, **kwargs)
        return Method(self, "to")(*args, **kwargs)


class Method:
    """Method of a remote object on the ranks."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote = remote
        self._name = name

    def __repr__(self) -> str:
        return f"<remote {self._remote._work.name}.{self._name}>"  # noqa: SLF001

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote._call(self._name, args, kwargs)  # noqa: SLF001 - one class in two halves

    def submit(self, *args: Any, **kwargs: Any) -> Job:
        """Start a call and return its job without waiting."""
        return self._remote._submit(self._name, args, kwargs)  # noqa: SLF001

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call it without blocking the event loop. Cancelling the wait ends the call."""
        return await self._remote._acall(self._name, args, kwargs)  # noqa: SLF001
