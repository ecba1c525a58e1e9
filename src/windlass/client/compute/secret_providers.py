"""Where well-known tools keep their secrets: variables first, then the file that their login writes.

Reads only; what was looked for is told when nothing is found, what was found never is.
"""

from __future__ import annotations

import configparser
import netrc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One tool: what it is called, its variables, its file."""

    name: str
    title: str
    wanted: tuple[
        tuple[str, ...], ...
    ]  # each: spellings of one variable, the first is what ranks get
    also: tuple[str, ...]  # variables that go along if they are set
    where: Callable[[Environ], Path]
    read: Callable[[Path, Environ], dict[str, str]]
    login: str

    def find(self, environ: Environ) -> dict[str, str]:
        """The variables for ranks."""
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
            # all of it from one place: half a pair of keys fits no other half
            return {**{name: also[name] for name in also if "TOKEN" not in name}, **kept}
        names = ", ".join(name for spellings in self.wanted for name in spellings)
        raise SpecError(
            f"no secret of {self.title} is here: looked for {names} and for {path}",
            hint=f"{self.login}; or, of the cluster, Secret(name=...)",
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
    # only this machine's own entry: the default of a netrc is somebody else's password
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
    """The provider of that name."""
    if name in PROVIDERS:
        return PROVIDERS[name]
    known = {**{known: known for known in PROVIDERS}, "huggingface": "hf"}
    listed = f"there are {', '.join(PROVIDERS)}"
    raise SpecError(
        f"there is no built-in secret {name!r:.60}",
        hint=did_you_mean(str(name).lower(), known, listed, show=known.__getitem__),
    )
