"""The socket of a server, taken before anything else is done: an address that cannot be had is known at once. Used by all servers."""

import socket
from contextlib import ExitStack

from slipstream.core.errors import UsageError


def bound(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket at the address, which accepts nothing yet. Raises UsageError naming --host and `option`, where the port came from."""
    with ExitStack() as unless_bound:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listener = unless_bound.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except (OSError, OverflowError) as error:
            raise UsageError(f"--host {host} {option} {port} cannot be used: {error}; {option} 0 takes any free port") from error
        unless_bound.pop_all()
    return listener
