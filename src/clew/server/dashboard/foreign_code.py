"""Keeps code of one user out of the submit form of another: whoever submits a job runs its code.

`clew retry` leaves a job with its author for the same reason (`clew.server.jobs.actions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.runs.run_trust import code_references
from clew.server.problems import forbidden


def brings_code(settings: Mapping[str, Any], files: Mapping[str, str] | None = None) -> bool:
    """Return whether a job with these settings and files runs other code than that of the installed recipes."""
    return bool(files or code_references(settings))


def check_author(settings: Mapping[str, Any], files: Mapping[str, str] | None = None, *, own: bool) -> None:
    """Check that a form may be filled with the settings and files of an earlier job, run or study.

    Args:
        settings: Its settings, with `recipe`.
        files: The files that were sent with it.
        own: Whether it belongs to the user who sees the form.

    Raises:
        RequestError: it brings code of another user (403).
    """
    if not own and brings_code(settings, files):
        hint = "read the code first; then submit it from files of your own, or ask its author to submit it"
        raise forbidden("this would run code of another user as you", hint=hint)
