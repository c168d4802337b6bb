"""What goes wrong with a store, as one line that says what, where and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from clew.errors import DataError
from clew.storage.locations import is_url, mask_secrets, scheme


class StoreUnavailableError(DataError):
    """A store does not answer, for now: trying again may help."""


class ChecksumMismatchError(DataError):
    """Bytes that are not those that were sent."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "root": "renew X509_USER_PROXY, BEARER_TOKEN or the Kerberos ticket",
    "rucio": "see RUCIO_HOME, RUCIO_ACCOUNT and RUCIO_AUTH_TYPE, and renew the proxy or token",
}
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
    """One of: credentials, denied, missing, bucket, did, scope, rse, full, gone; or nothing where it is not known."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return "full"
    seen: list[str] = []
    each: BaseException | None = error
    while each is not None and len(seen) < 6:
        seen.append(f"{type(each).__name__}: {each}")
        each = each.__cause__
    text = " ".join(seen)
    for kind, pattern in _RULES:
        if re.search(pattern, text):
            return kind
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, PermissionError):
        return "denied"
    return "gone" if isinstance(error, (ConnectionError, TimeoutError)) else ""


def storage_error(error: BaseException, location: str, act: str = "read") -> DataError:
    """The line for an error that came up while a location was read or written."""
    kind = error_kind(error)
    store = scheme(location)
    hints = {
        "credentials": f"wrong credentials; {_CREDENTIALS.get(store, 'check those of this store')}",
        "denied": "no permission" + (f", or wrong credentials; {_CREDENTIALS[store]}" if store in _CREDENTIALS else ""),
        "missing": "no such file",
        "bucket": "no such bucket",
        "did": "no such DID",
        "scope": "no such scope",
        "rse": "no such RSE",
        "full": "no space left there; make room and try again" if act == "written" else "the disk is full; make room",
        "gone": "the server does not answer; try again later, what is there already is kept",
    }
    own = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason = hints.get(kind, own) if is_url(location) or kind in ("missing", "full") else own
    raised = StoreUnavailableError if kind == "gone" else DataError
    return raised(f"{mask_secrets(location)}: cannot be {act} ({mask_secrets(str(reason))})")


@contextmanager
def one_line_errors(location: str, act: str = "read") -> Iterator[None]:
    """Whatever goes wrong inside as one line; what a store's client raises is its own affair, so all of it counts."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if not is_url(location) and not isinstance(error, (OSError, ValueError)):
            raise
        raise storage_error(error, location, act) from error
