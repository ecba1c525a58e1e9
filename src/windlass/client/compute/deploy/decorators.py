"""@compute and @distribute: decorators that set where a function or class runs.

    @wl.compute(gpus=8)
    @wl.distribute(framework="pytorch", workers=2)
    def train(): ...

Importing a module starts nothing: `windlass deploy` or `.deploy()` does. Afterwards a call runs the deployed
version, or the current one in the process that deployed it. `.local(...)` runs it in this process. Inside
ranks the decorators return their targets unchanged.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from windlass.client.keywords import COMPUTE, COMPUTE_MORE, DISTRIBUTE, show_keywords
from windlass.errors import JobNotFound, SpecError
from windlass.rank_stubs import is_inside, leave_plain

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from windlass.client.compute.calls.remote import Remote
    from windlass.client.compute.nodes.compute_handle import Compute
    from windlass.client.keyword_types import ComputeKeywords, DistributeKeywords
    from windlass.engines.protocol import JobRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Keywords of the decorators @compute and @distribute, or None if one is not used."""

    compute: Mapping[str, Any] | None = None
    distribute: Mapping[str, Any] | None = None


@overload
def compute(target: Callable[..., Any], /) -> Decorated: ...
@overload
def compute(
    **keywords: Unpack[ComputeKeywords],
) -> Callable[[Callable[..., Any]], Decorated]: ...
@show_keywords(COMPUTE, COMPUTE_MORE)
def compute(target: Any = None, /, **keywords: Unpack[ComputeKeywords]) -> Any:
    """Decorate a function or class with the nodes it runs on. The keywords are those of Compute.

    target: the function or class, if the decorator has no parentheses.
    """
    if not is_inside():
        from windlass.client.compute.nodes.compute_handle import check_compute_keywords

        check_compute_keywords(keywords)
    return _decorate(target, Marks(compute=keywords))


@overload
def distribute(target: Callable[..., Any], /) -> Decorated: ...
@overload
def distribute(
    framework: str = "", /, **keywords: Unpack[DistributeKeywords]
) -> Callable[[Callable[..., Any]], Decorated]: ...
@show_keywords(DISTRIBUTE)
def distribute(target: Any = None, /, **keywords: Unpack[DistributeKeywords]) -> Any:
    """Decorate a function or class with its framework and number of nodes.

    target: the framework, or the function or class if the decorator has no parentheses.
    """
    if isinstance(target, str):  # @distribute("pytorch", workers=2)
        target, keywords = None, {"framework": target, **keywords}
    if not is_inside():
        from windlass.client.compute.nodes.distribution import make_spread

        named: dict[str, Any] = {**keywords}
        if named.get("framework") == "":  # use the setting, which is read when the work is sent
            del named["framework"]
        make_spread(**named)
    return _decorate(target, Marks(distribute=keywords))


def _decorate(target: Any, marks: Marks) -> Any:
    if target is not None:  # without parentheses
        return _mark(target, marks)
    return functools.partial(_mark, marks=marks)


def _mark(target: Any, marks: Marks) -> Any:
    if isinstance(target, Decorated):
        return target.marked(marks)
    if not (inspect.isfunction(target) or inspect.isclass(target)):
        raise SpecError(
            f"only functions and classes can be decorated, not {target!r:.60}",
            hint="put @wl.compute(gpus=8) above def or class, with keywords in parentheses",
        )
    return leave_plain(target) if is_inside() else Decorated(target, marks)


class Decorated:
    """Decorated function or class. Calls go to the remote version, once it is deployed."""

    def __init__(self, target: Callable[..., Any], marks: Marks) -> None:
        self.is_class = inspect.isclass(target)
        # updated=(): a class's attributes are not copied, so lookups reach the remote
        functools.update_wrapper(self, target, updated=())
        self.name = target.__name__
        self.marks = marks
        self._target = target
        self._nodes: Compute | None = None
        self._remote: Remote | None = None

    def marked(self, marks: Marks) -> Decorated:
        """Return a copy with another decorator's marks. Each decorator may be used once."""
        for kind in ("compute", "distribute"):
            if getattr(marks, kind) is not None and getattr(self.marks, kind) is not None:
                raise SpecError(
                    f"{self.name} is decorated with @{kind} twice",
                    hint="pass all arguments to one decorator",
                )
        distribute = self.marks.distribute if marks.distribute is None else marks.distribute
        compute = self.marks.compute if marks.compute is None else marks.compute
        return Decorated(self._target, Marks(compute=compute, distribute=distribute))

    def __repr__(self) -> str:
        return f"<{self.name}, decorated; {'deployed' if self._remote else 'not deployed here'}>"

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """Run it in this process."""
        return self._target(*args, **kwargs)

    def deploy(self) -> Remote:
        """Start it unless it is running, so that `get(name)` finds it. Returns the remote version."""
        from windlass.client.compute.calls.remote import Remote

        # not self._send().deploy(): the class may define a `deploy` method
        self._remote = Remote.deploy(self._send())
        return self._remote

    @property
    def ref(self) -> JobRef | None:
        """Job of its nodes, or None before this process has deployed it."""
        return None if self._nodes is None else self._nodes.nodes().ref

    def _send(self, init_args: Sequence[Any] | Mapping[str, Any] = ()) -> Remote:
        from windlass.client.compute.calls.remote import cls, fn
        from windlass.client.compute.nodes.compute_handle import Compute

        if self._nodes is None:
            self._nodes = Compute(**(self.marks.compute or {}))
            if self.marks.distribute is not None:
                self._nodes = self._nodes.distribute(**self.marks.distribute)
        nodes = self._nodes
        target: Any = self  # not the plain target: ranks find that by its name
        if self.is_class:
            return cls(target, name=self.name, init_args=init_args).to(nodes)
        return fn(target, name=self.name).to(nodes)

    @property
    def remote(self) -> Remote:
        """Remote version, deployed by this or another process."""
        if self._remote is None:
            from windlass.client.compute.deploy.deployment import get

            given = self.marks.compute or {}
            where = {key: given[key] for key in ("engine", "namespace", "context") if key in given}
            try:
                self._remote = get(self.name, **where)
            except JobNotFound as error:
                raise SpecError(
                    f"{self.name} is not deployed",
                    hint=f"run `windlass deploy {self._file()}`, or call {self.name}.deploy(); "
                    f"{self.name}.local(...) runs it here",
                ) from error
        return self._remote

    def _file(self) -> str:
        return getattr(sys.modules.get(self.__module__), "__file__", None) or "SCRIPT.py"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the remote function, or create the object of a class on every rank."""
        if not self.is_class:
            return self.remote(*args, **kwargs)
        self._remote = self._send(_bind(self._target, args, kwargs))
        return self._remote

    def __getattr__(self, name: str) -> Any:
        """Return a method of the class, or of any remote: submit, acall."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        attribute = getattr(self.remote, name)
        own = inspect.getattr_static(self._target, name, None)
        # methods keep their own signature
        return (
            functools.update_wrapper(attribute, own, updated=())
            if inspect.isfunction(own)
            else attribute
        )

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._target,)

    def __reduce__(self) -> Any:
        """Pickle as the plain function, which ranks have, and by name if possible."""
        here: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            here = getattr(here, part, None)
        if here is self and self.__module__ != "__main__":
            return self.__qualname__
        return leave_plain, (self._target,)


def _bind(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...] | dict[str, Any]:
    """Return a constructor's arguments in one form: all by position, or all by name."""
    if not kwargs or not args:
        return kwargs or args
    try:
        bound = inspect.signature(target).bind(*args, **kwargs)
    except TypeError as error:
        raise SpecError(f"cannot create {target.__name__}: {error}") from error
    by_name: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise SpecError(
                f"{target.__name__} takes {name} only by position, but others were given by name",
                hint="pass all arguments by position",
            )
        by_name |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return by_name
