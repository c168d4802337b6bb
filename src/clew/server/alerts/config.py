"""Settings of alerts: a part of the settings of a server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from clew.core.config import Section


class EmailSettings(Section):
    """How e-mails are sent."""

    host: str
    """The mail server."""
    port: int = Field(25, ge=1, le=65535)
    """Port of the mail server."""
    sender: str
    """Address in the line From."""
    to: tuple[str, ...] = Field(min_length=1)
    """Addresses that get every alert."""
    tls: bool = False
    """Encrypt with STARTTLS."""
    user: str | None = None
    """Name to log in with; default: no log-in."""
    password_file: Path | None = None
    """A file with the password of `user`; the password itself does not belong into settings."""

    @field_validator("to", "sender")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for address in (value,) if isinstance(value, str) else value:
            if "@" not in address or any(each in address for each in "\r\n,;"):
                raise ValueError(f"not an e-mail address: {address!r}")
        return value


class AlertSettings(Section):
    """When and where alerts are sent. Without `webhook` and `email` nothing is sent."""

    webhook: str | None = None
    """`https://...`: every alert is posted there as JSON, with a `text` that chat services show."""
    email: EmailSettings | None = None
    """Send every alert by e-mail; default: none."""
    failures: bool = True
    """Runs and jobs that failed, were interrupted or lost."""
    plateau_epochs: int | None = Field(None, ge=1)
    """A run whose validation loss did not improve for so many epochs; None: no such alerts."""
    address: str = ""
    """The address of the server for links, such as `https://clew.example.org`."""
    seconds: float = Field(15.0, ge=0.5)
    """Seconds between two checks."""

    @field_validator("webhook")
    @classmethod
    def _web_address(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("https://", "http://")):
            raise ValueError("an address that starts with https:// or http://")
        return value

    @property
    def on(self) -> bool:
        """Whether alerts are sent at all."""
        return self.webhook is not None or self.email is not None
