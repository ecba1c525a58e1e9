"""State of callbacks in checkpoints: tensors and plain values, which load without running code.

Called by `trainer_setup` and the trainer. A callback takes part by overriding `Callback.state_dict` and
`load_state_dict`. Loaded states wait here until `on_start` was called, so that a callback may make its
objects there and fill them afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from windlass.errors import SpecError
from windlass.train.callbacks import Callback

logger = logging.getLogger(__name__)

ENTRY = "callbacks"  # in a checkpoint's state
_PLAIN = (bool, int, float, str, type(None))


class CallbackStates:
    """The states of all callbacks that have one, as one entry of a checkpoint."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks: dict[str, Callback] = {}
        for callback in callbacks:
            read = getattr(type(callback), "state_dict", Callback.state_dict)
            if read is not Callback.state_dict:
                kind = type(callback).__name__
                same = sum(type(one).__name__ == kind for one in self._callbacks.values())
                self._callbacks[f"{kind}-{same + 1}" if same else kind] = callback
        self._loaded: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def state_dict(self) -> dict[str, Any]:
        """Return each callback's state by its class name; raise for what cannot be saved safely."""
        return {
            name: _check(name, "state_dict()", callback.state_dict())
            for name, callback in self._callbacks.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep what a checkpoint has until `deliver`."""
        self._loaded = dict(state)

    def deliver(self) -> None:
        """Give the loaded states to the callbacks; called once, after `on_start`."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for name, callback in self._callbacks.items():
            if name in loaded:
                callback.load_state_dict(_place_like(loaded.pop(name), _present(callback)))
            else:
                logger.warning("the checkpoint has no state of the callback %s", name)
        for name in loaded:
            logger.warning("the checkpoint has state of a callback %s, which is not here", name)


def _check(callback: str, place: str, value: Any) -> Any:
    """Return the value with plain dicts; raise if there is more than tensors and JSON in it."""
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: _check(callback, f"{place}[{key!r}]", item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            _check(callback, f"{place}[{index}]", item) for index, item in enumerate(value)
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise SpecError(
        f"the state of the callback {callback} cannot be saved: {place} is a {kind}",
        hint="checkpoints hold tensors, numbers, text, and dicts (keys: text or whole numbers) and lists "
        "of these; convert it in state_dict() and back in load_state_dict()",
    )


def _present(callback: Callback) -> Any:
    """Return a callback's state before a load; None if it has none yet."""
    try:
        return callback.state_dict()
    except (AttributeError, KeyError, TypeError):  # made with the first step
        return None


def _place_like(loaded: Any, present: Any) -> Any:
    """Put loaded tensors where the callback's present ones are, on a device or in shards."""
    if isinstance(loaded, torch.Tensor) and isinstance(present, torch.Tensor):
        if loaded.shape != present.shape:
            return loaded
        whole = loaded.to(present.device)
        if not isinstance(present, DTensor):
            return whole
        return distribute_tensor(whole, present.device_mesh, present.placements, src_data_rank=None)
    if isinstance(loaded, dict) and isinstance(present, Mapping):
        return {key: _place_like(item, present.get(key)) for key, item in loaded.items()}
    is_list = isinstance(loaded, list | tuple) and isinstance(present, list | tuple)
    if is_list and len(loaded) == len(present):
        return type(loaded)(map(_place_like, loaded, present))
    return loaded
