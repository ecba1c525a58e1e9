"""fn and cls: a function or class of this process that runs on a compute, called as if it were here.

    remote = fn(train).to(compute).distribute("pytorch", workers=4)
    results = remote(lr=1e-3)

What is said to whom is `client.warm.calling`, what a call is made of `client.warm.requests`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from windlass.agent import commands
from windlass.client.job import Job
from windlass.client.warm.calling import Calling, Reply
from windlass.client.warm.compute import Compute
from windlass.client.warm.echo import Echo
from windlass.client.warm.nodes import LiveNodes
from windlass.client.warm.requests import Requests, Work, make_work
from windlass.client.warm.spread import Spread, make_spread
from windlass.errors import SpecError
from windlass.inside import Plain, is_inside
from windlass.settings.durations import read_duration

_COLLECTS = ("all", "head")
_KEEPS = ("", "process")
_RELOADS = ("auto", "never")
_CALL_OPTIONS = ("timeout", "stream", "collect", "ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How calls are made."""

    timeout: float | None = None
    stream: bool = False
    collect: str = "all"
    ranks: tuple[int, ...] | None = None
    keep: str = ""
    reload: str = "auto"
    logs: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (
            ("collect", self.collect, _COLLECTS),
            ("keep", self.keep, _KEEPS),
            ("reload", self.reload, _RELOADS),
        ):
            if value not in known:
                shown = ", ".join(repr(word) for word in known if word)
                raise SpecError(f"{name} cannot be {value!r}", hint=f"there is {shown}")
        if self.timeout is not None:
            found = read_duration(self.timeout)
            if not found > 0:
                raise SpecError(f"timeout must be more than 0, not {self.timeout}")
            object.__setattr__(self, "timeout", found)


def fn(function: Callable[..., Any] | str, *, name: str = "", **options: Any) -> Remote:
    """A function that can be sent `.to(compute)`; a text is a command, run once on every node."""
    if is_inside() and callable(function):  # a rank imports the module that says this
        return Plain(function)  # type: ignore[return-value]
    return Remote(make_work(function, name=name), _make_options(options))


def cls(
    target: type,
    *,
    name: str = "",
    init_args: Sequence[Any] | Mapping[str, Any] = (),
    **options: Any,
) -> Remote:
    """A class whose object lives on every rank; `init_args` go to its constructor."""
    if is_inside():
        return Plain(target)  # type: ignore[return-value]
    if not inspect.isclass(target) and not getattr(target, "is_class", False):
        raise SpecError(f"cls takes a class, not {target!r:.60}", hint="functions go to kt.fn(...)")
    if not isinstance(init_args, (Mapping, list, tuple)):
        raise SpecError(
            f"init_args must be a list or a dict, not {init_args!r:.60}", hint="init_args=[5]"
        )
    args = () if isinstance(init_args, Mapping) else tuple(init_args)
    kwargs = dict(init_args) if isinstance(init_args, Mapping) else {}
    work = make_work(target, name=name, init=(args, kwargs))
    return Remote(work, _make_options({"keep": "process", **options}))


def _make_options(given: Mapping[str, Any], before: Options | None = None) -> Options:
    known = ("name", "init_args", *Options.__dataclass_fields__)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise SpecError(f"there is no option {name!r}", hint=hint)
    found = dict(given)
    if found.get("ranks") is not None:
        found["ranks"] = _read_ranks(found["ranks"])
    found["keep"] = found.get("keep") or (before.keep if before else "")
    return replace(before or Options(), **found)


def _read_ranks(given: Any) -> tuple[int, ...]:
    ranks = (given,) if isinstance(given, int) else given
    is_list = isinstance(ranks, (list, tuple, range, set, frozenset))
    if not is_list or not ranks or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise SpecError(f"ranks={given!r:.60} names no ranks", hint="ranks=[0, 3]")
    return tuple(sorted(set(ranks)))


class Remote:
    """A callable that runs on a compute."""

    def __init__(self, work: Work, options: Options) -> None:
        self._work = work
        self._options = options
        self._compute: Compute | None = None
        self._spread: Spread | None = None
        self._requests: Requests | None = None
        self._deployed: Mapping[str, Any] | None = None  # what it was described as, elsewhere

    def __repr__(self) -> str:
        where = self._compute.name if self._compute else "nowhere yet"
        return f"<remote {self._work.name} on {where}>"

    @property
    def name(self) -> str:
        return self._work.name

    @property
    def work(self) -> Work:
        """What is called."""
        return self._work

    def describe(self) -> dict[str, Any]:
        """How it is called, as plain data: what `get` rebuilds it from."""
        spread, options = self._spread, self._options
        return {
            "compute": self.compute.name,
            "is_class": self._work.is_class,
            "is_command": self._work.is_command,
            "instance": self._work.instance,
            "spread": None if spread is None else dataclasses.asdict(spread),
            "options": {"collect": options.collect, "keep": options.keep},
            **self._make_requests().describe(),
        }

    @classmethod
    def rebuild(cls, target: Any, name: str, found: Mapping[str, Any], compute: Compute) -> Remote:
        """One that was described, perhaps by another process, on the nodes it was deployed on."""
        work = Work(
            target=target,
            name=name,
            is_class=found["is_class"],
            is_command=found.get("is_command", False),
            instance=found["instance"],
            early=found.get("early", ""),
        )
        remote = cls(work, Options(**found["options"]))
        remote._compute = compute
        remote._spread = None if found["spread"] is None else Spread(**found["spread"])
        remote._deployed = found
        return remote

    @property
    def compute(self) -> Compute:
        if self._compute is None:
            raise SpecError(
                f"{self.name} is not on a compute yet", hint=f"fn({self.name}).to(Compute(...))"
            )
        return self._compute

    # -- where it runs -------------------------------------------------------------------------

    def to(self, compute: Compute) -> Remote:
        """The same on a compute, whose nodes come up now; live ones are used."""
        if not isinstance(compute, Compute):
            raise SpecError(
                f".to takes a Compute, not {compute!r:.60}", hint=".to(Compute(gpus=1))"
            )
        spread = compute.spread or self._spread
        compute.nodes(self._work.label).bring_up(
            spread.workers if spread else 1, self._work.preload
        )
        return self._with(compute=compute, spread=spread, deployed=None)

    def distribute(
        self,
        framework: str = "pytorch",
        workers: int = 1,
        procs: int | None = None,
        **more: Any,
    ) -> Remote:
        """The same on so many nodes; the one that is there stays node 0."""
        spread = make_spread(framework, workers=workers, procs=procs, **more)
        if self._compute is not None:
            self._nodes().bring_up(spread.workers, self._work.preload)
        return self._with(spread=spread)

    def options(self, **options: Any) -> Remote:
        """The same with other options: timeout, stream, collect, ranks, keep, reload, logs."""
        return self._with(options=_make_options(options, self._options))

    def _with(self, **changed: Any) -> Remote:
        found = copy.copy(self)
        for name, value in {**changed, "requests": None}.items():
            setattr(found, f"_{name}", value)
        return found

    def deploy(self) -> Remote:
        """Have it up under its name, so that `get(name)` finds it from anywhere.

        Its nodes, its code and its ranks are there when this returns.
        """
        from windlass.client.warm.named import record

        idle = dataclasses.replace(self._work, target=commands.do_nothing, is_class=False)
        self._with(work=idle, options=Options(logs=False))()
        record(self)
        return self

    def teardown(self) -> None:
        """End the nodes of its compute."""
        self.compute.teardown()

    # -- calling -------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it and wait: one value without `.distribute`, else a list of every rank's."""
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
                f"{name!r} cannot be set from here: the object lives on its ranks; "
                "give the class a method that sets it"
            )
        super().__setattr__(name, value)

    def submit(self, *args: Any, **kwargs: Any) -> Job:
        """Call it and return at once; the call goes on when this process ends."""
        return self._submit(self._own_method, args, kwargs)

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call it without blocking the event loop; who stops waiting ends the call."""
        return await self._acall(self._own_method, args, kwargs)

    def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, kwargs = self._split(method, kwargs)
        calling, echo = self._make(method, args, kwargs, options)
        calling.say()
        if options.stream:
            return self._stream(calling, echo)
        try:
            reply = calling.follow()
        except KeyboardInterrupt:
            calling.cancel("Ctrl-C in its client", interrupt=True)
            raise
        finally:
            echo.close()
            calling.let_go(is_broken=True)  # a line that is still held is in the middle of a story
        return self._unwrap(reply, options)

    async def _acall(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        options, kwargs = self._split(method, kwargs)
        calling, echo = self._make(method, args, kwargs, options)

        def follow() -> Reply:
            calling.say()
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

    def _stream(self, calling: Calling, echo: Echo) -> Iterator[Any]:
        ended = False
        try:
            yield from calling.items()
            ended = True
        finally:
            echo.close()
            if not ended:
                calling.cancel("its reader went away")
            calling.let_go(is_broken=True)
        error = calling.reply.error()
        if error is not None:
            raise error

    def _submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job:
        from windlass.client.warm.calljob import CallJob

        options, kwargs = self._split(method, kwargs)
        calling, _ = self._make(method, args, kwargs, options, detach=True)
        calling.say()
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
    ) -> tuple[Calling, Echo]:
        requests = self._make_requests()
        request = requests.make(method, args, kwargs, options, detach=detach)
        echo = Echo(num_ranks=requests.num_ranks, procs=requests.procs)
        show = echo.show if options.logs else lambda _rank, _data: None
        return Calling(self._nodes(), request, show), echo

    def _make_requests(self) -> Requests:
        if self._requests is None:
            self._requests = Requests(
                self._work, self.compute, self._nodes(), self._spread, deployed=self._deployed
            )
        return self._requests

    def _split(self, method: str, kwargs: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Our keywords and the function's own; what the function has a parameter for is its own."""
        given: list[str] = [name for name in _CALL_OPTIONS if name in kwargs]
        if not given:
            return self._options, kwargs
        own = self._work.parameters(method)
        ours = {name: kwargs[name] for name in given if name not in own}
        left = {name: value for name, value in kwargs.items() if name not in ours}
        return (_make_options(ours, self._options) if ours else self._options), left

    def _unwrap(self, reply: Reply, options: Options) -> Any:
        error = reply.error()
        if error is not None:
            raise error
        if self._spread is None or options.collect == "head":
            return reply.value(0)
        return [reply.value(rank) for rank in sorted(reply.results)]

    def _nodes(self) -> LiveNodes:
        return self.compute.nodes(self._work.label)


class Method:
    """A method of an object that lives on ranks."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote = remote
        self._name = name

    def __repr__(self) -> str:
        return f"<remote {self._remote.name}.{self._name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._remote._call(self._name, args, kwargs)  # noqa: SLF001 - one class in two halves

    def submit(self, *args: Any, **kwargs: Any) -> Job:
        """Call it and return at once."""
        return self._remote._submit(self._name, args, kwargs)  # noqa: SLF001

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call it without blocking the event loop; who stops waiting ends the call."""
        return await self._remote._acall(self._name, args, kwargs)  # noqa: SLF001
