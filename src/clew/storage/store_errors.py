"""Errors of stores, translated into one line that says what happened, where, and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from clew.errors import DataError
from clew.storage.locations import is_url, mask_secrets, scheme


class StoreUnavailableError(DataError):
    """A store does not answer. A later try may succeed."""


class ChecksumMismatchError(DataError):
    """The received content has another checksum than the content that was sent."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "root": "renew X509_USER_PROXY, BEARER_TOKEN or the Kerberos ticket",
    "rucio": "see RUCIO_HOME, RUCIO_ACCOUNT and RUCIO_AUTH_TYPE, and renew the proxy or token",
}
_EXTRAS = {"s3": "s3", "root": "xrootd"}
_RULES: tuple[tuple[str, str], ...] = (
    (
        "credentials",
        r"InvalidAccessKeyId|SignatureDoesNotMatch|NoCredentials|PartialCredentials|ExpiredToken|InvalidToken|"
        r"CannotAuthenticate|InvalidAuth|\[FATAL\] Auth failed|No protocols left|Unauthorized|access key ID you|"
        r"MissingClientParameter|NoAuthInformation",
    ),
    ("bucket", r"NoSuchBucket|bucket does not exist"),
    ("did", r"DataIdentifierNotFound|Data identifier .* not found"),
    ("scope", r"ScopeNotFound"),
    ("rse", r"RSENotFound"),
    ("full", r"\[3009\]|InsufficientStorage|No space left|QuotaExceeded|InsufficientAccountLimit"),
    ("denied", r"AccessDenied|Access ?Denied|\[3010\]|\(403\)|Forbidden|permission denied|not authori[sz]ed"),
    ("missing", r"\[3011\]|NoSuchKey|no such file|\(404\)"),
    (
        "gone",
        r"EndpointConnection|ConnectionError|ConnectionClosed|ConnectTimeout|ReadTimeout|ServerConnection|Connection "
        r"error|Connection refused|Operation expired|Socket|ServerDisconnected|ClientConnector|ClientPayload|"
        r"ResponseStreaming|IncompleteRead|Invalid session|\[3007\]|\[3012\]|InternalError|ServiceUnavailable|SlowDown|"
        r"\(50[0234]\)|TimeoutError|Could not connect|Stream",
    ),
)


def error_kind(error: BaseException) -> str:
    """Classify an error: credentials, denied, missing, bucket, did, scope, rse, full or gone; '' if unknown."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return "full"
    messages: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(messages) < 6:
        messages.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    text = " ".join(messages)
    for kind, pattern in _RULES:
        if re.search(pattern, text):
            return kind
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, PermissionError):
        return "denied"
    return "gone" if isinstance(error, (ConnectionError, TimeoutError)) else ""


def storage_error(error: BaseException, location: str, action: str = "read") -> DataError:
    """The error to raise instead of `error`, which occurred while `location` was read or written."""
    kind = error_kind(error)
    store = scheme(location)
    if isinstance(error, ImportError) and store in _EXTRAS:
        return DataError(f"{mask_secrets(location)}: needs another package; pip install 'clew[{_EXTRAS[store]}]'")
    hints = {
        "credentials": f"wrong credentials; {_CREDENTIALS.get(store, 'check those of this store')}",
        "denied": "no permission" + (f", or wrong credentials; {_CREDENTIALS[store]}" if store in _CREDENTIALS else ""),
        "missing": "no such file",
        "bucket": "no such bucket",
        "did": "no such DID",
        "scope": "no such scope",
        "rse": "no such RSE",
        "full": "no space left there; make room and try again"
        if action == "written"
        else "the disk is full; make room",
        "gone": "the server does not answer; try again later, the parts transferred so far are not lost",
    }
    original = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason = hints.get(kind, original) if is_url(location) or kind in ("missing", "full") else original
    error_class = StoreUnavailableError if kind == "gone" else DataError
    return error_class(f"{mask_secrets(location)}: cannot be {action} ({mask_secrets(str(reason))})")


@contextmanager
def one_line_errors(location: str, action: str = "read") -> Iterator[None]:
    """Translate every exception inside the block into a one-line `DataError`.

    Client libraries of stores raise many classes, so all exceptions are translated for URLs. For local paths only
    OSError and ValueError are.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if not is_url(location) and not isinstance(error, (OSError, ValueError)):
            raise
        raise storage_error(error, location, action) from error
