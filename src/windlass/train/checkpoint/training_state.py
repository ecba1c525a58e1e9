"""A training's state as one flat table of names to tensors or bytes, and the way back into its objects.

Models contribute their own tensors, which are loaded in place. Optimizers contribute their state under the
names of the parameters. Other objects contribute what their `state_dict` returns. Everything that is not a
tensor is stored beside them in one JSON entry per object. Loading therefore works before the state exists.
This module reads no files and does not communicate with other ranks.

Some tensors are made of other tensors, such as the quantized moments of an 8-bit optimizer. Their parts are
saved unchanged. Saving the values that they represent would take more space and round differently.
Sharded tensors (DTensor) are not split, because torch handles them itself.

A rank's random generators are bytes. They are Python's, torch's, its CUDA generator, and numpy's if it is
imported. With another world size, new states are derived from the seed, the step and the rank.
"""

from __future__ import annotations

import hashlib
import io
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from windlass.errors import SpecError
from windlass.train.checkpoint.state_encoding import encode, record

_WRAPPED = (
    "_orig_mod.",  # torch.compile
    "_checkpoint_wrapped_module.",  # activation checkpointing
)
# settings of an optimizer that are chosen for this device, so the saved ones do not apply
_DEVICE_SETTINGS = ("fused", "foreach", "capturable", "differentiable")
_OTHERS = "~"  # suffix of an entry's JSON


@record
@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedAt:
    """Placeholder for a wrapper tensor: its class, and the tensors it is rebuilt from."""

    kind: type
    context: Any  # data that the class needs besides its parts
    size: tuple[int, ...]
    stride: tuple[int, ...]
    parts: dict[str, Any]


def is_wrapped(value: Any) -> bool:
    """Return whether a value is a tensor made of other tensors."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, DTensor)
        and hasattr(type(value), "__tensor_flatten__")
    )


def take_apart(value: Any, replace: Callable[[str, Any], Any]) -> WrappedAt:
    """Return a placeholder for a tensor, with each part replaced by `replace(its name, part)`."""
    names, context = value.__tensor_flatten__()
    return WrappedAt(
        kind=type(value),
        context=context,
        size=tuple(value.size()),
        stride=tuple(value.stride()),
        parts={name: replace(name, getattr(value, name)) for name in names},
    )


def put_together(at: WrappedAt, find: Callable[[Any], Any]) -> torch.Tensor:
    """Return the tensor rebuilt from the parts that `find` returns."""
    parts = {name: find(part) for name, part in at.parts.items()}
    kind: Any = at.kind
    made: torch.Tensor = kind.__tensor_unflatten__(parts, at.context, at.size, at.stride)
    return made


def list_parts(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that store a tensor's data: the tensor itself, or its parts."""
    if not is_wrapped(value):
        yield value
        return
    names, _ = value.__tensor_flatten__()
    for name in names:
        yield from list_parts(getattr(value, name))


@record
@dataclass(frozen=True, slots=True)
class TensorAt:
    """Placeholder in an entry for the tensor with this name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """Shape and dtype of a tensor in a checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def clean_name(name: str) -> str:
    """Return a parameter's name without the prefixes that wrappers add."""
    for wrapped in _WRAPPED:
        name = name.replace(wrapped, "")
    return name


def flatten_state(state: Mapping[str, Any], *, allow_pickle: bool = False) -> dict[str, Any]:
    """Flatten a state into a table of uncopied tensors and JSON values.

    Objects that JSON cannot hold raise NeedsTrustError, unless `allow_pickle` pickles them.
    """
    names = _parameter_names(state)
    table: dict[str, Any] = {}
    for entry, value in state.items():
        if isinstance(value, nn.Module):
            tensors, others = _split_model(entry, value)
        else:
            whole = _read_optimizer(value, names) if isinstance(value, Optimizer) else _read(value)
            tensors = {}
            others = _take_tensors(whole, entry, tensors)
        table |= tensors
        table[f"{entry}{_OTHERS}"] = encode(others, name=entry, allow_pickle=allow_pickle)
    return table


def list_others(state: Mapping[str, Any]) -> list[str]:
    """Return the names of a state's entries that are not tensors."""
    return [f"{entry}{_OTHERS}" for entry in state]


def find_faults(state: Mapping[str, Any], saved: Mapping[str, SavedTensor | None]) -> list[str]:
    """Return why a checkpoint with these contents does not fit this state, or an empty list if it does."""
    faults: list[str] = []
    for entry, value in state.items():
        if f"{entry}{_OTHERS}" not in saved:
            faults.append(f"it has no {entry!r}")
        elif isinstance(value, nn.Module):
            own = _split_model(entry, value)[0]
            theirs = {name for name in saved if _belongs_to(name, entry)}
            faults += [f"{name} is missing" for name in sorted(own.keys() - theirs)]
            faults += [f"{name} is not in this model" for name in sorted(theirs - own.keys())]
            for name in sorted(own.keys() & theirs):
                tensor = saved[name]
                if tensor is not None and tensor.shape != tuple(own[name].shape):
                    faults.append(f"{name} is {list(tensor.shape)}, here {list(own[name].shape)}")
    return faults


def make_targets(
    state: Mapping[str, Any], others: Mapping[str, Any], saved: Mapping[str, SavedTensor | None]
) -> dict[str, torch.Tensor]:
    """Return the tensors to load into: a model's own tensors, and new ones for state that is replaced."""
    parameters = {name: parameter for parameter, name in _parameter_names(state).items()}
    targets: dict[str, torch.Tensor] = {}
    for entry, value in state.items():
        if isinstance(value, nn.Module):
            targets |= _split_model(entry, value)[0]
            continue
        present: dict[str, Any] = {}
        if isinstance(value, Optimizer):
            _take_tensors(_read_optimizer(value, _parameter_names(state)), entry, present)
        for at in _find_tensors(others[f"{entry}{_OTHERS}"]):
            tensor = saved[at.name]
            if tensor is not None:
                like = parameters.get(_parameter_of(at.name, entry))
                targets[at.name] = _make_target(at.name, tensor, like, present.get(at.name))
    return targets


def restore_state(
    state: Mapping[str, Any], others: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Pass the loaded state to the objects. The tensors of models are already in place."""
    names = _parameter_names(state)
    for entry, value in state.items():
        rest = others[f"{entry}{_OTHERS}"]
        if isinstance(value, nn.Module):
            if rest:
                unwrap(value).load_state_dict(rest, strict=False)
        elif isinstance(value, Optimizer):
            _restore_optimizer(value, _put_tensors(rest, tensors), names)
        elif isinstance(value, torch.Tensor):
            with torch.no_grad():
                value.copy_(tensors[rest.name])
        elif callable(load := getattr(value, "load_state_dict", None)):
            try:
                load(_put_tensors(rest, tensors))
            except (AttributeError, KeyError, TypeError) as error:  # saved by another class
                raise SpecError(
                    f"{type(value).__name__} cannot load the {entry!r} of the checkpoint: {error!r}",
                    hint=f"use the {entry} that was saved, or start a run with another name",
                ) from error
        else:
            raise SpecError(f"the state's {entry!r} cannot be loaded into a {type(value).__name__}")


# Models.


def _models(state: Mapping[str, Any]) -> dict[str, nn.Module]:
    return {entry: value for entry, value in state.items() if isinstance(value, nn.Module)}


def _split_model(entry: str, model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return a model's tensors by name (tied ones once), and the rest of its state."""
    tensors: dict[str, torch.Tensor] = {}
    others: dict[str, Any] = {}
    for name, value in unwrap(model).state_dict().items():
        if isinstance(value, torch.Tensor):
            tensors[f"{entry}.{clean_name(name)}"] = value
        else:
            others[name] = value
    return drop_tied(tensors), others


def drop_tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors without those that share the memory of an earlier one."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[object] = set()
    for name, tensor in tensors.items():
        place = find_place(tensor)
        if place is None or place not in seen:
            kept[name] = tensor
        seen.add(place)
    return kept


def find_place(tensor: torch.Tensor) -> object:
    """Return an identifier of a tensor's memory, or None if it has no memory of its own."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    address = local.data_ptr() if local.numel() else 0
    return (
        (address, local.device, tuple(local.shape), local.stride(), local.dtype)
        if address
        else None
    )


def _parameter_names(state: Mapping[str, Any]) -> dict[nn.Parameter, str]:
    """Return the name of every parameter of the state's models, such as model.layers.0.weight."""
    return {
        parameter: f"{entry}.{clean_name(name)}"
        for entry, model in _models(state).items()
        for name, parameter in unwrap(model).named_parameters()
    }


# Optimizer states use parameter names, because parameter numbers depend on the order of the groups.


def _read_optimizer(optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
    own = _own_names(optimizer, names)
    return {
        "state": {own[parameter]: dict(value) for parameter, value in optimizer.state.items()},
        "param_groups": [
            {**group, "params": [own[parameter] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ],
    }


def _own_names(optimizer: Optimizer, names: Mapping[nn.Parameter, str]) -> dict[Any, str]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        parameter: names.get(parameter, f"parameter {number}")
        for number, parameter in enumerate(parameters)
    }


def _restore_optimizer(
    optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[nn.Parameter, str]
) -> None:
    own = _own_names(optimizer, names)
    numbers = {name: number for number, name in enumerate(own.values())}
    group_of = {name: group for group in saved["param_groups"] for name in group["params"]}
    if missing := sorted(numbers.keys() - group_of.keys()):
        raise SpecError(
            f"the checkpoint's optimizer does not contain {', '.join(missing[:3])}",
            hint="load with the optimizer that was saved, or omit it from the state",
        )
    ours, theirs = optimizer.param_groups[0].keys(), saved["param_groups"][0].keys()
    if ours - theirs and theirs - ours:  # torch versions only add or only remove settings
        raise SpecError(
            f"the checkpoint's optimizer is not {type(optimizer).__name__}: it has "
            f"{min(theirs - ours)!r}, but not {min(ours - theirs)!r}",
            hint="load with the kind of optimizer that was saved, or start a run with another name",
        )
    groups = []
    for group in optimizer.param_groups:
        members = [own[parameter] for parameter in group["params"]]
        settings = group_of[members[0]] if members else group
        device_settings = {key: group[key] for key in _DEVICE_SETTINGS if key in group}
        groups.append(
            {**settings, **device_settings, "params": [numbers[name] for name in members]}
        )
    state = {numbers[name]: value for name, value in saved["state"].items() if name in numbers}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    by_name = {name: parameter for parameter, name in own.items()}
    for name, values in saved["state"].items():
        for key, value in values.items() if name in by_name else ():
            now = optimizer.state[by_name[name]].get(key)
            if (
                isinstance(now, torch.Tensor) and now.dtype != value.dtype
            ):  # bf16 moments of fp32 parameters
                optimizer.state[by_name[name]][key] = value.to(now.device)


def _parameter_of(name: str, entry: str) -> str:
    """Return model.layers.0.weight for optimizer.state.model.layers.0.weight.exp_avg."""
    return name.removeprefix(f"{entry}.state.").rpartition(".")[0]


def _make_target(
    name: str, saved: SavedTensor, like: nn.Parameter | None, present: Any
) -> torch.Tensor:
    """Return an empty tensor for a saved one, sharded like its parameter if the shapes match."""
    for model in (like, present):
        if isinstance(model, torch.Tensor) and tuple(model.shape) == saved.shape:
            return torch.empty_like(model, dtype=saved.dtype, requires_grad=False)
    if isinstance(like, DTensor) and saved.shape:
        raise SpecError(
            f"{name} is {list(saved.shape)}, unlike its parameter, so its sharding is not known yet",
            hint="make one optimizer step before loading, so that the state exists",
        )
    if like is None or not saved.shape:
        return torch.empty(saved.shape, dtype=saved.dtype)
    return torch.empty(saved.shape, dtype=saved.dtype, device=like.device)


# Other state: nested dicts, lists and tuples that contain tensors.


def _read(value: Any) -> Any:
    read: Callable[[], Any] | None = getattr(value, "state_dict", None)
    return read() if callable(read) else value


def _take_tensors(value: Any, name: str, tensors: dict[str, Any]) -> Any:
    """Return the value with each tensor replaced by a TensorAt, and add the tensors to `tensors`."""
    if is_wrapped(value):
        return take_apart(value, lambda key, part: _take_tensors(part, f"{name}.{key}", tensors))
    if isinstance(value, torch.Tensor):
        while name in tensors:  # {"a.b": {"c": ...}, "a": {"b.c": ...}} has a.b.c twice
            name += "'"
        tensors[name] = value.detach()
        return TensorAt(name)
    if isinstance(value, dict):
        return {key: _take_tensors(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            _take_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)
        )
    return value


def _put_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, TensorAt):
        return tensors[value.name]
    if isinstance(value, WrappedAt):
        return put_together(value, lambda part: _put_tensors(part, tensors))
    if isinstance(value, dict):
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_put_tensors(item, tensors) for item in value)
    return value


def _find_tensors(value: Any) -> Iterator[TensorAt]:
    if isinstance(value, TensorAt):
        yield value
    elif isinstance(value, WrappedAt):
        yield from _find_tensors(value.parts)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _find_tensors(item)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _find_tensors(item)


def _belongs_to(name: str, entry: str) -> bool:
    return name.startswith(f"{entry}.")


def read_rng() -> bytes:
    """Return the current states of this rank's random generators."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (str(name), [int(key) for key in keys], *rest)
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    buffer = io.BytesIO()
    torch.save(states, buffer)
    return buffer.getvalue()


def restore_rng(data: bytes) -> None:
    """Restore the generators to the states that `read_rng` returned."""
    states = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def derive_rng(*, seed: int, step: int, rank: int, world_size: int) -> None:
    """Seed the generators from these numbers. Equal numbers give equal states."""
    text = f"windlass rng {seed} {step} {rank} {world_size}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    random.seed(number)
    torch.manual_seed(number % 2**63)  # seeds CUDA too
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)
