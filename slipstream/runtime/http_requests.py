"""What all our HTTP servers ask of a request, and the words for those that aiohttp refuses. Pure."""

import hmac

from aiohttp import web


def bears(request: web.Request, token: str) -> bool:
    """The request carries the token as a bearer."""
    return is_bearer(request.headers.get("Authorization", ""), token)


def is_bearer(authorization: str, token: str) -> bool:
    """The header names the token; compared in constant time."""
    given = bearer(authorization)
    return given is not None and hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


def bearer(authorization: str) -> str | None:
    """The token that the header names, if it is one of a bearer."""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def http_words(error: web.HTTPException, request: web.Request, max_body_bytes: int) -> str:
    """For people."""
    match error.status:
        case 404:
            return f"there is no {request.method} {request.path} here"
        case 405:
            return f"{request.path} takes no {request.method}"
        case 413:
            return f"the body is larger than {max_body_bytes} bytes"
        case _:
            return error.reason
