"""Answers requests without a valid token, and limits how often an address may try."""

from __future__ import annotations

import time

from clew.client.server_proof import LOGIN_HINT, UNKNOWN_TOKEN
from clew.server.problems import RequestError

_WINDOW_SECONDS = 60.0
_MAX_ADDRESSES = 10_000


class RateLimit:
    """Counts invalid tokens per address. A valid token is always accepted, because it cannot be guessed."""

    def __init__(self, max_invalid: int) -> None:
        """`max_invalid`: invalid tokens per minute and address; after that the answer is 429."""
        self._max_invalid = max_invalid
        self._invalid: dict[str, tuple[float, int]] = {}
        self.total = 0
        """Invalid tokens since the start."""

    def rejection(self, address: str, *, has_token: bool) -> RequestError:
        """Return the answer to a request without a valid token: 401, or 429 after too many in one minute.

        Args:
            address: Where the request came from.
            has_token: Whether the request had a token at all.
        """
        if not has_token:
            return RequestError(401, "this needs a token", hint=LOGIN_HINT)
        self.total += 1
        now = time.monotonic()
        started, count = self._invalid.get(address, (now, 0))
        if now - started > _WINDOW_SECONDS:
            started, count = now, 0
        if len(self._invalid) > _MAX_ADDRESSES:
            self._invalid.clear()
        self._invalid[address] = (started, count + 1)
        if count >= self._max_invalid:
            seconds = _WINDOW_SECONDS - (now - started)
            return RequestError(
                429, "too many bad tokens from this address", hint="wait, then use a valid one", retry_after=seconds
            )
        return RequestError(401, UNKNOWN_TOKEN, hint=LOGIN_HINT)
