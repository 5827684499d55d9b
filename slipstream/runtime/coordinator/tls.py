"""Certificates of servers and of those who trust them. Used by the coordinator and by all who call it or serve weights."""

import ssl
from pathlib import Path

from slipstream.core.errors import UsageError


def server_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """For a server with this certificate; None without one. Raises UsageError for half of it, or files that cannot be used."""
    if (cert is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key belong together: give both or neither")
    if cert is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-cert {cert} --tls-key {key} cannot be used: {error}") from error
    return context


def client_context(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificates of the file, or the system's. Raises UsageError for a file that cannot be used."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--tls-ca {ca_file} cannot be used: {error}") from error
