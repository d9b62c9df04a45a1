"""One HTTP request and its whole answer. Looks at no proxy variables: routers and workers are asked directly."""

from __future__ import annotations

import http.client
import json
from typing import Any, Dict, Mapping, NamedTuple, Optional
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """An answer, whatever its status."""

    status: int
    #: Names in lower case.
    headers: Dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body read as JSON, `None` if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def connect(url: str, timeout_secs: float) -> http.client.HTTPConnection:
    """A connection to the host of `url`; `timeout_secs` limits each wait on it."""
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_secs)


def send(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}
) -> http.client.HTTPResponse:
    """Sends a request on `connection`; `body` is written as JSON. The answer's body is still to be read."""
    payload: Optional[bytes] = None if body is None else json.dumps(body).encode()
    sent = {**({} if payload is None else {"content-type": "application/json"}), **headers}
    connection.request(method, path, payload, sent)
    return connection.getresponse()


def ask(
    method: str, url: str, path: str, body: Any = None, headers: Mapping[str, str] = {}, timeout_secs: float = 60
) -> Answer:
    """Sends a request on a connection of its own. Raises `OSError` or `http.client.HTTPException`."""
    connection = connect(url, timeout_secs)
    try:
        response = send(connection, method, path, body, headers)
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()
