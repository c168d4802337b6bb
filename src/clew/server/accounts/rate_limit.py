"""Who comes without a good token is turned away; who keeps coming is told to wait."""

from __future__ import annotations

import time

from clew.server.problems import RefusedError

_WINDOW = 60.0
_DO = "log in with `clew login`, or ask an administrator for a token"


class Doorman:
    """Counts bad tokens by address. A good token always passes: it cannot be guessed, so nobody is locked out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bad: dict[str, tuple[float, int]] = {}
        self.total = 0

    def turned_away(self, address: str, *, given: bool) -> RefusedError:
        """What to answer: 401, or 429 for who has tried too often in the last minute."""
        if not given:
            return RefusedError(401, "this needs a token", do=_DO)
        self.total += 1
        now = time.monotonic()
        begun, count = self._bad.get(address, (now, 0))
        if now - begun > _WINDOW:
            begun, count = now, 0
        if len(self._bad) > 10_000:
            self._bad.clear()
        self._bad[address] = (begun, count + 1)
        if count >= self._most:
            left = _WINDOW - (now - begun)
            return RefusedError(429, "too many bad tokens from this address", do="wait, then use a good one", wait=left)
        return RefusedError(401, "this token is not good here: unknown, expired or revoked", do=_DO)
