"""Where a coordinator is, and the secret that it asks for. Used by callers and by the command line."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from slipstream.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the coordinator is and how it is reached."""

    url: str  # http(s)://host:port
    token: str | None = None
    ca_file: Path | None = None  # certificates to trust, also those of others that serve weights; None: the system's

    def __post_init__(self) -> None:
        if not _usable(self.url):
            raise UsageError(f"--join {self.url}: not the address of a coordinator; it looks like http://host:port")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """What a person chooses when a role joins a run."""

    address: Address
    name: str | None = None  # the same after a restart: takes its place again at once
    host: str | None = None  # address to serve weights at; None: the one on the way to the coordinator
    port: int = 0  # to serve weights at; 0: any free one
    advertise: str | None = None  # URL at which others reach that server; None: the one it listens at
    tls_cert: Path | None = None  # of the server of weights
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        if self.advertise is not None and not _usable(self.advertise):
            raise UsageError(f"--advertise {self.advertise}: not an address to serve weights at; it looks like http://host:port")


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.path in ("", "/"))
    except ValueError:  # a port that is no number
        return False


def secret(file: Path | None) -> str | None:
    """The token of a file. Raises UsageError for one that is empty or not plain."""
    if file is None:
        return None
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {error}") from error
    if not (token and token.isascii() and token.isprintable()):
        raise UsageError(f"--token-file {file} holds no token: one line of printable ASCII characters is needed")
    return token
