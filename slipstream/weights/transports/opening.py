"""The source behind a URL, whatever its transport. Called by fetchers."""

import ssl

from slipstream.weights.transports.source import ChunkSource


def open_source(url: str, token: str, stall_s: float, tls: ssl.SSLContext | None = None) -> ChunkSource:
    """http(s)://host:port, or grpc://host:port for Arrow Flight. `tls`: how https is trusted. Raises UsageError where it is neither."""
    if url.startswith("grpc"):
        from slipstream.weights.transports.flight import FlightSource  # gRPC takes a moment to load, and most never need it

        return FlightSource(url, token)
    from slipstream.weights.transports.http_source import HttpSource

    return HttpSource(url, token, stall_s=stall_s, tls=tls)
