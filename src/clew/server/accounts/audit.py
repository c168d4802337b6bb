"""The audit log: which user did what, and from which address."""

from __future__ import annotations

import time
from typing import Any

from clew.server.accounts.caller import Caller
from clew.server.database.tables import audit
from clew.server.database.writer import Transaction


def record_action(transaction: Transaction, caller: Caller | None, action: str, target: str, **detail: Any) -> None:
    """Add an entry to the audit log.

    Args:
        transaction: The transaction in which the action happens.
        caller: The user; None for the server itself.
        action: What was done, such as `delete`.
        target: What it was done to, such as `run:17`.
        detail: More values, stored as JSON.
    """
    user, token, address = (caller.user, caller.token, caller.address) if caller else (None, None, "")
    row = {"user": user, "token": token, "address": address, "action": action, "what": target}
    transaction.add_later(audit, time=time.time(), detail=detail or None, **row)
