"""Delivers an alert: a JSON document to a webhook, an e-mail to a list of addresses."""

from __future__ import annotations

import json
import smtplib
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from functools import partial
from http.client import HTTPException
from typing import Any

from clew.server.alerts.config import AlertSettings, EmailSettings

_SECONDS = 10.0
"""How long a delivery may take."""


@dataclass(frozen=True)
class Alert:
    """One message."""

    kind: str
    """`failed` or `plateau`."""
    name: str
    """Of the run or job."""
    reason: str
    link: str
    owner: str

    @property
    def title(self) -> str:
        """One line."""
        words = {"failed": "failed", "plateau": "does not improve"}[self.kind]
        return " ".join(f"{self.name} of {self.owner} {words}".split())[:200]

    @property
    def text(self) -> str:
        """The title, the reason and the link."""
        return "\n".join(part for part in (self.title, self.reason, self.link) if part)


def delivery_places(settings: AlertSettings) -> dict[str, Callable[[Alert], None]]:
    """Return the places of alerts by name: functions that deliver one.

    They raise OSError if the place does not answer, or refuses the alert.
    """
    places: dict[str, Callable[[Alert], None]] = {}
    if settings.webhook is not None:
        places["webhook"] = partial(_post, settings.webhook)
    if settings.email is not None:
        places["email"] = partial(_mail, settings.email)
    return places


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses to go to another address: the administrator named one, and no other is called."""

    def redirect_request(self, *_: Any) -> None:
        """Return nothing: the answer is an error."""


def _post(address: str, alert: Alert) -> None:
    body = json.dumps({**asdict(alert), "text": alert.text}).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "clew"}
    request = urllib.request.Request(address, body, headers, method="POST")
    try:
        # http or https: checked with the settings
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_SECONDS) as response:
            response.read(1000)
    except HTTPException as error:  # the answer is not HTTP
        raise OSError(f"the webhook's answer cannot be understood ({type(error).__name__})") from error


def _mail(email: EmailSettings, alert: Alert) -> None:
    message = EmailMessage()
    message["Subject"] = f"clew: {alert.title}"
    message["From"], message["To"] = email.sender, ", ".join(email.to)
    message.set_content(alert.text + "\n")
    try:
        with smtplib.SMTP(email.host, email.port, timeout=_SECONDS) as server:
            if email.tls:
                server.starttls()
            if email.user is not None and email.password_file is not None:
                server.login(email.user, email.password_file.read_text().strip())
            server.send_message(message)
    except smtplib.SMTPException as error:
        raise OSError(f"{email.host}: {error}") from error
