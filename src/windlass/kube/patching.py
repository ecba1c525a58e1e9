"""A strategic merge over a pod's template: the patch names what it changes, all else stays.

Tables are merged, null deletes. Lists whose items have a name of their own (containers, env, volumes,
mounts ...) are merged item by item, tolerations are added, every other list is replaced. `$patch: delete`
in an item and `$patch: replace` in a table mean what they mean to kubectl. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.errors import SpecError

# The API's own merge keys, of the types that can be in a pod's template.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "resizePolicy": ("resourceName",),
}
_ADDED = ("tolerations",)
_ONE_OF = {"volumes": "name", "env": "name"}  # items with one source each: another replaces it
_DIRECTIVE = "$patch"


def apply_patch(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the patch merged in."""
    return _merge_table(template, patch, "patch")


def _merge_table(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> dict[str, Any]:
    directive = new.get(_DIRECTIVE)
    if directive not in (None, "replace", "merge", "delete"):
        raise SpecError(
            f"{path}: {_DIRECTIVE} is {directive!r}", hint="it may be replace, merge or delete"
        )
    if directive == "delete":
        return {}
    merged = {} if directive == "replace" else dict(old)
    for key, value in new.items():
        if key == _DIRECTIVE:
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(merged.get(key), value, key, f"{path}.{key}")
    return merged


def _merge_value(old: Any, new: Any, key: str, path: str) -> Any:
    if isinstance(new, Mapping):
        if old is not None and not isinstance(old, Mapping):
            raise SpecError(f"{path} must not be a table", hint=f"there it is {old!r:.60}")
        return _merge_table(old or {}, new, path)
    if not isinstance(new, (list, tuple)):
        if isinstance(old, (Mapping, list)):
            kind = "table" if isinstance(old, Mapping) else "list"
            raise SpecError(f"{path} must be a {kind}, found {new!r:.60}", hint="null deletes it")
        return new
    if old is not None and not isinstance(old, (list, tuple)):
        raise SpecError(f"{path} must not be a list", hint=f"there it is {old!r:.60}")
    if key in _KEYS:
        return _merge_items(list(old or ()), new, key, path)
    return [*(old or ()), *new] if key in _ADDED else list(new)


def _merge_items(
    old: list[Any], new: list[Any] | tuple[Any, ...], key: str, path: str
) -> list[Any]:
    """Items of the same name become one, in the place of the old; others come behind."""
    merged = list(old)
    for index, item in enumerate(new):
        where = f"{path}[{index}]"
        if not isinstance(item, Mapping):
            raise SpecError(
                f"{where} must be a table", hint=f"with {' and '.join(_KEYS[key])} in it"
            )
        if item == {_DIRECTIVE: "replace"}:
            merged = []
            continue
        ident = _ident(item, key, where)
        at = next((i for i, other in enumerate(merged) if _ident(other, key, where) == ident), None)
        if item.get(_DIRECTIVE) == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(_merge_table({}, item, where))
        else:
            merged[at] = _merge_table(_keep_source(merged[at], item, key), item, where)
    return merged


def _ident(item: Mapping[str, Any], key: str, where: str) -> tuple[Any, ...]:
    missing = [name for name in _KEYS[key] if name not in item]
    if missing:
        raise SpecError(
            f"{where} has no {missing[0]}", hint=f"{missing[0]} says which of the {key} is meant"
        )
    return tuple(item[name] for name in _KEYS[key])


def _keep_source(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An item that can have one source only loses the old one when the patch gives another."""
    name = _ONE_OF.get(key)
    given = {field for field, value in new.items() if value is not None} - {name}
    if name is None or not given or given & set(old):
        return old
    return {name: old[name]}
