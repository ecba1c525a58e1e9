"""Secret: a reference to values that ranks need and that must not appear in any output.

    Secret(name="db")                             every key of a Kubernetes Secret as a variable
    Secret(name="db", key="pw", env="DB_PW")      one key as one variable
    Secret(name="db", mount_path="/creds")        every key as a file
    Secret.from_env(["A", "B"])                   variables of this process
    Secret.from_file(".env")                      the variables in a file of NAME=value lines
    Secret.from_file("key.txt", env="KEY")        a file as one variable
    Secret("hf"), Secret("wandb"), Secret("aws")  the credentials that these tools store

A Secret never holds a value. It names a source, and `resolve_secrets` reads it just before nodes start.
Showing, storing or pickling a Secret therefore reveals nothing, and no error shows a value. Providers look
at variables first, then at the file that the tool's login writes.
"""

from __future__ import annotations

import configparser
import netrc
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.spec import storage

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
Environ = Mapping[str, str]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HINT = 'use Secret(name="NAME"), Secret.from_env(["VARIABLE"]), Secret.from_file(".env") or Secret("hf")'
_MAX_FILE_BYTES = 256 << 10


def read_dotenv(text: str, where: str) -> dict[str, str]:
    """Return the variables in the text of a file. `where` names the file in messages."""
    variables: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise SpecError(
                f"{where}, line {number}: expected NAME=value",
                hint='use env="NAME" to set one variable to the whole file',
            )
        variables[match[1]] = _read_value(match[2], f"{where}, line {number}")
    if not variables:
        raise SpecError(f"{where} contains no variables", hint="write lines of NAME=value")
    return variables


def _read_value(text: str, where: str) -> str:
    quote = text[:1]
    if quote not in ("'", '"'):
        return re.split(r"\s+#", text, maxsplit=1)[0].rstrip()
    end = _find_end(text, quote)
    rest = text[end + 1 :].strip()
    if end < 0 or (rest and not rest.startswith("#")):
        raise SpecError(
            f"{where}: the quotes do not match", hint="put the value in one pair of quotes"
        )
    inner = text[1:end]
    if quote == "'":
        return inner
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), inner)


def _find_end(text: str, quote: str) -> int:
    at = 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 1
        elif text[at] == quote:
            return at
        at += 1
    return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Tool that stores credentials: its name, variables and file."""

    name: str
    title: str
    # the spellings of each variable: ranks get the first one
    wanted: tuple[tuple[str, ...], ...]
    also: tuple[str, ...]  # variables to pass on if they are set
    where: Callable[[Environ], Path]
    read: Callable[[Path, Environ], dict[str, str]]
    login: str

    def find(self, environ: Environ) -> dict[str, str]:
        """Return the variables for ranks."""
        also = {name: environ[name] for name in self.also if environ.get(name)}
        values = {}
        for spellings in self.wanted:
            value = next((environ[name] for name in spellings if environ.get(name)), "")
            if value:
                values[spellings[0]] = value
        if len(values) == len(self.wanted):
            return {**also, **values}
        path = self.where(environ)
        try:
            kept = self.read(path, environ)
        except (OSError, ValueError, netrc.NetrcParseError, configparser.Error):
            kept = {}
        if all(kept.get(spellings[0]) for spellings in self.wanted):
            # all from one source, because keys of different pairs do not match
            return {**{name: also[name] for name in also if "TOKEN" not in name}, **kept}
        names = ", ".join(name for spellings in self.wanted for name in spellings)
        raise SpecError(
            f"no {self.title} credentials found in {names} or {path}",
            hint=f"{self.login}; or use a Secret of the cluster: Secret(name=...)",
        )


def _home(environ: Environ) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _hf_file(environ: Environ) -> Path:
    if environ.get("HF_TOKEN_PATH"):
        return Path(environ["HF_TOKEN_PATH"])
    cache = environ.get("XDG_CACHE_HOME") or _home(environ) / ".cache"
    return Path(environ.get("HF_HOME") or Path(cache) / "huggingface") / "token"


def _read_hf(path: Path, _environ: Environ) -> dict[str, str]:
    return {"HF_TOKEN": path.read_text(encoding="utf-8").strip()}


def _netrc_file(environ: Environ) -> Path:
    return Path(environ.get("NETRC") or _home(environ) / ".netrc")


def _read_wandb(path: Path, environ: Environ) -> dict[str, str]:
    host = urlsplit(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    # only the host's own entry: the default of a netrc belongs to another service
    entry = netrc.netrc(str(path)).hosts.get(host)
    return {"WANDB_API_KEY": entry[2] or ""} if entry else {}


def _aws_file(environ: Environ) -> Path:
    given = environ.get("AWS_SHARED_CREDENTIALS_FILE")
    return Path(given or _home(environ) / ".aws" / "credentials")


def _read_aws(path: Path, environ: Environ) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.read_string(path.read_text(encoding="utf-8"))
    profile = environ.get("AWS_PROFILE") or "default"
    section = parser[profile] if parser.has_section(profile) else {}
    keys = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return {key.upper(): section[key] for key in keys if section.get(key)}


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(
            name="hf",
            title="Hugging Face",
            wanted=(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"),),
            also=("HF_ENDPOINT",),
            where=_hf_file,
            read=_read_hf,
            login="hf auth login, or export HF_TOKEN=...",
        ),
        Provider(
            name="wandb",
            title="Weights & Biases",
            wanted=(("WANDB_API_KEY",),),
            also=("WANDB_BASE_URL",),
            where=_netrc_file,
            read=_read_wandb,
            login="wandb login, or export WANDB_API_KEY=...",
        ),
        Provider(
            name="aws",
            title="AWS",
            wanted=(("AWS_ACCESS_KEY_ID",), ("AWS_SECRET_ACCESS_KEY",)),
            also=("AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"),
            where=_aws_file,
            read=_read_aws,
            login="aws configure, or export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...",
        ),
    )
}


def find_provider(name: str) -> Provider:
    """Return the provider of that name."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    known = {**{known: known for known in PROVIDERS}, "huggingface": "hf"}
    listed = f"available: {', '.join(PROVIDERS)}"
    raise SpecError(
        f"unknown built-in secret {name!r:.60}",
        hint=did_you_mean(str(name).lower(), known, listed, show=known.__getitem__),
    )


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Secret:
    """Reference to secret values: in a Secret of the cluster, or where tools store them on this machine.

    A Secret never holds a value. `Secret("hf")`, `Secret("wandb")` and `Secret("aws")` read the credentials
    that these tools store. Any other name is a Secret of the cluster.
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
        """Describe a secret. Its values are read just before nodes start.

        given: a tool's name (hf, wandb, aws), or the name of a Secret of the cluster.
        name: name of a Secret of the cluster.
        provider: a tool's name (hf, wandb, aws).
        key: use only this key of the Secret.
        env: variable that holds the key's value.
        mount_path: folder where each key is a file, instead of a variable.
        """
        if not provider and not name and given in PROVIDERS:
            provider, given = given, ""
        if sum(map(bool, (given, name, provider))) != 1:
            raise SpecError("a Secret requires exactly one name or provider", hint=_HINT)
        if provider:
            if key or env or mount_path:
                raise SpecError(
                    f"the provider {provider} does not accept key, env or mount_path",
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
        """Return a Secret for variables of this process.

        variables: names of the variables.
        name: the secret's name in messages.
        """
        listed = (variables,) if isinstance(variables, str) else tuple(variables)
        if not listed:
            raise SpecError(
                "from_env requires at least one variable", hint='use from_env(["API_KEY"])'
            )
        for variable in listed:
            _check_variable(variable)
        return cls._make(_variables=listed, _label=name)

    @classmethod
    def from_file(
        cls, path: str | Path, *, env: str = "", name: str = "", mount_path: str = ""
    ) -> Secret:
        """Return a Secret for a file of this machine.

        path: the file. Without `env`, it has lines of NAME=value.
        env: variable that holds the whole text of the file.
        name: the secret's name in messages.
        mount_path: not supported, because a local file can only become variables.
        """
        if mount_path:
            raise SpecError(
                "a local file can set a variable, but cannot be mounted",
                hint=f"run `kubectl create secret generic NAME --from-file={path}`, then use "
                f'Secret(name="NAME", mount_path="{mount_path}")',
            )
        if env:
            _check_variable(env)
        return cls._make(_file=os.path.expanduser(str(path)), _env=env, _label=name)

    @classmethod
    def read(cls, given: str | Secret) -> Secret:
        """Return a Secret for a Secret, a provider's name, or a form of `--secret`."""
        if isinstance(given, Secret):
            return given
        if not isinstance(given, str):
            raise SpecError(
                f"a secret must be a string or a Secret, not {type(given).__name__}", hint=_HINT
            )
        if given in PROVIDERS:
            return cls(provider=given)
        return cls._make(_record=storage.read_secret(given))

    def resolve(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the values, or none if only the cluster has them. They must not be shown."""
        if self._provider:
            return find_provider(self._provider).find(environ)
        if self._file:
            return _read_file(Path(self._file), self._env)
        missing = [variable for variable in self._variables if variable not in environ]
        if missing:
            raise SpecError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set here, "
                f"but {self} needs {'it' if len(missing) == 1 else 'them'}",
                hint=f"export {missing[0]}=..., or use a Secret of the cluster: Secret(name=...)",
            )
        return {variable: environ[variable] for variable in self._variables}

    @property
    def record(self) -> storage.Secret | None:
        """Form in which pods use a Secret of the cluster, or None if the values are local."""
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
    """Secrets for nodes: references for pods, and values that are never shown."""

    records: tuple[storage.Secret, ...]
    hidden: Mapping[str, str] = field(repr=False)


def resolve_secrets(
    given: Iterable[str | Secret], *, environ: Mapping[str, str], has_pods: bool
) -> Resolved:
    """Read the values of all secrets.

    Refuses two secrets that set the same variable, and secrets of the cluster on nodes without pods.
    """
    records: list[storage.Secret] = []
    hidden: dict[str, str] = {}
    owners: dict[str, Secret] = {}
    for secret in map(Secret.read, given):
        if secret.record is not None:
            if not has_pods:
                raise SpecError(
                    f"{secret} is an object of a cluster, but these nodes are processes on this machine",
                    hint="Secret.from_env([...]) and Secret.from_file(...) work on both",
                )
            records.append(secret.record)
        values = secret.resolve(environ)
        if isinstance(secret.record, storage.SecretVariable):
            values = {secret.record.variable: ""}
        for variable in values:
            if variable in owners:
                raise SpecError(
                    f"{variable} is set by {owners[variable]} and by {secret}",
                    hint="remove one of them",
                )
            owners[variable] = secret
        if secret.record is None:
            hidden |= values
    return Resolved(records=tuple(records), hidden=hidden)


def _make_record(name: str, key: str, env: str, mount_path: str) -> storage.Secret:
    if mount_path and (key or env):
        raise SpecError(
            f"the Secret {name} cannot be both files and variables",
            hint="mount_path makes every key a file; add a second Secret for the variable",
        )
    if env and not key:
        raise SpecError(
            f"env={env!r} needs a key of the Secret {name}", hint=f'use key="token", env="{env}"'
        )
    if key:
        _check_variable(env or key, hint=f'use Secret(name="{name}", key="{key}", env="VARIABLE")')
        return _read_form(f"{env or key}={name}:{key}")
    return _read_form(f"{name}:{mount_path}" if mount_path else name)


def _read_form(text: str) -> storage.Secret:
    try:
        return storage.read_secret(text)
    except SpecError as error:
        raise SpecError(f"Secret: {error.message.rpartition(': ')[2]}", hint=_HINT) from None


def _check_variable(name: object, *, hint: str = 'from_env(["API_KEY"])') -> None:
    if not isinstance(name, str) or not _VARIABLE.match(name):
        # not shown in full: it may be the value itself
        shown = f"{name[:4]}..." if isinstance(name, str) and len(name) > 4 else name
        raise SpecError(f"invalid environment variable name {shown!r}", hint=hint)


def _read_file(path: Path, env: str) -> dict[str, str]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise SpecError(
                f"{path} has more than {_MAX_FILE_BYTES:,} bytes, which is too large for a secret",
                hint="put large files on a Volume",
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot read the secret file {path}: {error.strerror}",
            hint="pass the path of an existing file",
        ) from error
    except UnicodeDecodeError:
        raise SpecError(
            f"{path} is not text, so it cannot be a variable",
            hint=f"run `kubectl create secret generic NAME --from-file={path}`, then use "
            'Secret(name="NAME", mount_path="/creds")',
        ) from None
    if env:
        return {env: text.rstrip("\r\n")}
    return read_dotenv(text, str(path))
