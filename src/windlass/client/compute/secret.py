"""Secret: what ranks must know and nobody may read. By reference to a Secret of the cluster, or from here.

    Secret(name="db")                             every key of a Kubernetes Secret as a variable
    Secret(name="db", key="pw", env="DB_PW")      one key as one variable
    Secret(name="db", mount_path="/creds")        every key as a file
    Secret.from_env(["A", "B"])                   variables of this process
    Secret.from_file(".env")                      the variables in a file
    Secret.from_file("key.txt", env="KEY")        a file as one variable
    Secret("hf"), Secret("wandb"), Secret("aws")  where these tools keep theirs

A Secret never holds a value: it says where one is found, and `resolve_secrets` looks there when nodes are
about to start. So nothing that shows, stores or pickles a Secret can give one away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.client.compute.dotenv import read_dotenv
from windlass.client.compute.secret_providers import PROVIDERS, find_provider
from windlass.errors import SpecError
from windlass.spec import storage

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HINT = (
    'Secret(name="NAME"), Secret.from_env(["VARIABLE"]), Secret.from_file(".env") or Secret("hf")'
)
_MAX_FILE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Secret:
    """Where secret values are found: a Secret of the cluster, or a tool's usual place on this machine.

    A Secret never holds a value. `Secret("hf")`, `Secret("wandb")` and `Secret("aws")` read what these tools
    keep here; any other name is a Secret of the cluster.
    """

    _record: storage.Secret | None = None
    _provider: str = ""
    _variables: tuple[str, ...] = ()
    _file: str = ""
    _env: str = ""
    _label: str = ""

    def __init__(
        self,
        given: str = "",
        /,
        *,
        name: str = "",
        provider: str = "",
        key: str = "",
        env: str = "",
        mount_path: str = "",
    ) -> None:
        """Nothing is read yet: values are looked up when nodes are about to start.

        given: a tool's name (hf, wandb, aws), or the name of a Secret of the cluster.
        name: the name of a Secret of the cluster.
        provider: a tool's name (hf, wandb, aws).
        key: only this key of the Secret.
        env: the variable that holds the key's value.
        mount_path: the folder in which each key is a file, rather than a variable.
        """
        if not provider and not name and given in PROVIDERS:
            provider, given = given, ""
        if sum(map(bool, (given, name, provider))) != 1:
            raise SpecError("a Secret has one name or one provider", hint=_HINT)
        if provider:
            if key or env or mount_path:
                raise SpecError(
                    f"the secret of {provider} takes no key, env or mount_path",
                    hint=f'Secret("{provider}") sets the usual variables',
                )
            self._fill(_provider=find_provider(provider).name)
        else:
            self._fill(_record=_make_record(given or name, key, env, mount_path))

    def _fill(self, **fields: Any) -> None:
        empty = {"_record": None, "_provider": "", "_variables": (), "_file": "", "_env": ""}
        for field_name, value in {**empty, "_label": "", **fields}.items():
            object.__setattr__(self, field_name, value)

    @classmethod
    def _make(cls, **fields: Any) -> Secret:
        made = cls.__new__(cls)
        made._fill(**fields)  # noqa: SLF001 - its own
        return made

    @classmethod
    def from_env(cls, variables: str | Iterable[str], *, name: str = "") -> Secret:
        """Variables of this process.

        variables: their names.
        name: what the secret is called in messages.
        """
        listed = (variables,) if isinstance(variables, str) else tuple(variables)
        if not listed:
            raise SpecError("from_env needs at least one variable", hint='from_env(["API_KEY"])')
        for variable in listed:
            _check_variable(variable)
        return cls._make(_variables=listed, _label=name)

    @classmethod
    def from_file(
        cls, path: str | Path, *, env: str = "", name: str = "", mount_path: str = ""
    ) -> Secret:
        """A file of this machine.

        path: the file; it has lines NAME=value unless `env` is given.
        env: the variable that holds the file's whole text.
        name: what the secret is called in messages.
        mount_path: refused: a file of this machine can only become variables.
        """
        if mount_path:
            raise SpecError(
                "a file of this machine can become a variable, not a mounted file",
                hint=f"kubectl create secret generic NAME --from-file={path}, then "
                f'Secret(name="NAME", mount_path="{mount_path}")',
            )
        if env:
            _check_variable(env)
        return cls._make(_file=os.path.expanduser(str(path)), _env=env, _label=name)

    @classmethod
    def read(cls, given: str | Secret) -> Secret:
        """A Secret from what a user gave for one: a provider's name, or a form of `--secret`."""
        if isinstance(given, Secret):
            return given
        if not isinstance(given, str):
            raise SpecError(f"a secret cannot be a {type(given).__name__}", hint=_HINT)
        if given in PROVIDERS:
            return cls(provider=given)
        return cls._make(_record=storage.read_secret(given))

    def resolve(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The values; empty where only the cluster knows them. Not for showing."""
        if self._provider:
            return find_provider(self._provider).find(environ)
        if self._file:
            return _read_file(Path(self._file), self._env)
        missing = [variable for variable in self._variables if variable not in environ]
        if missing:
            raise SpecError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set here, "
                f"and {self} wants {'it' if len(missing) == 1 else 'them'}",
                hint=f"export {missing[0]}=..., or name a Secret of the cluster: Secret(name=...)",
            )
        return {variable: environ[variable] for variable in self._variables}

    @property
    def record(self) -> storage.Secret | None:
        """How pods use a Secret of the cluster; None where the values come from here."""
        return self._record

    def __repr__(self) -> str:
        label = f", name={self._label!r}" if self._label else ""
        if self._provider:
            return f"Secret({self._provider!r})"
        if self._file:
            env = f", env={self._env!r}" if self._env else ""
            return f"Secret.from_file({self._file!r}{env}{label})"
        if self._record is None:
            return f"Secret.from_env({list(self._variables)!r}{label})"
        match self._record:
            case storage.SecretVariable(secret=secret, key=key, variable=variable):
                return f"Secret(name={secret!r}, key={key!r}, env={variable!r})"
            case storage.SecretFiles(secret=secret, path=path):
                return f"Secret(name={secret!r}, mount_path={path!r})"
            case _:
                return f"Secret(name={self._record.secret!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What the nodes are given: references for pods, and values that are never shown."""

    records: tuple[storage.Secret, ...]
    hidden: Mapping[str, str] = field(repr=False)


def resolve_secrets(
    given: Iterable[str | Secret], *, environ: Mapping[str, str], has_pods: bool
) -> Resolved:
    """Look up every secret now. Two that set one variable, or one that only pods could have, are refused."""
    records: list[storage.Secret] = []
    hidden: dict[str, str] = {}
    owners: dict[str, Secret] = {}
    for secret in map(Secret.read, given):
        if secret.record is not None:
            if not has_pods:
                raise SpecError(
                    f"{secret} is an object of a cluster, and these nodes are processes of this machine",
                    hint="Secret.from_env([...]) and Secret.from_file(...) work on both",
                )
            records.append(secret.record)
        values = secret.resolve(environ)
        if isinstance(secret.record, storage.SecretVariable):
            values = {secret.record.variable: ""}
        for variable in values:
            if variable in owners:
                raise SpecError(
                    f"{variable} is set by {owners[variable]} and by {secret}", hint="leave one out"
                )
            owners[variable] = secret
        if secret.record is None:
            hidden |= values
    return Resolved(records=tuple(records), hidden=hidden)


def _make_record(name: str, key: str, env: str, mount_path: str) -> storage.Secret:
    if mount_path and (key or env):
        raise SpecError(
            f"the Secret {name} cannot be files and variables at once",
            hint="mount_path gives every key as a file; write a second Secret for the variable",
        )
    if env and not key:
        raise SpecError(f"which key of {name} shall be {env}?", hint=f'key="token", env="{env}"')
    if key:
        _check_variable(env or key, hint=f'Secret(name="{name}", key="{key}", env="VARIABLE")')
        return _read_form(f"{env or key}={name}:{key}")
    return _read_form(f"{name}:{mount_path}" if mount_path else name)


def _read_form(text: str) -> storage.Secret:
    try:
        return storage.read_secret(text)
    except SpecError as error:
        raise SpecError(f"Secret: {error.message.rpartition(': ')[2]}", hint=_HINT) from None


def _check_variable(name: object, *, hint: str = 'from_env(["API_KEY"])') -> None:
    if not isinstance(name, str) or not _VARIABLE.match(name):
        # not shown whole: it may be the value itself
        shown = f"{name[:4]}..." if isinstance(name, str) and len(name) > 4 else name
        raise SpecError(f"{shown!r} is not a name for an environment variable", hint=hint)


def _read_file(path: Path, env: str) -> dict[str, str]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise SpecError(
                f"{path} has more than {_MAX_FILE_BYTES:,} bytes, too many for a secret",
                hint="put large files on a Volume",
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot read the secret file {path}: {error.strerror}",
            hint="name a file that is there",
        ) from error
    except UnicodeDecodeError:
        raise SpecError(
            f"{path} is not text, so it cannot be a variable",
            hint=f"kubectl create secret generic NAME --from-file={path}, then "
            'Secret(name="NAME", mount_path="/creds")',
        ) from None
    if env:
        return {env: text.rstrip("\r\n")}
    return read_dotenv(text, str(path))
