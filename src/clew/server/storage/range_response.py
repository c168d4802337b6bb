"""A content that is no file of this machine, sent whole or in the part that was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from fastapi.responses import Response, StreamingResponse

_BLOCK = 1 << 22
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def ranged(
    asked: Mapping[str, str], read: Callable[[int, int], bytes], size: int, kind: str, headers: Mapping[str, str]
) -> Response:
    """The answer to a request with these headers; `read` gives bytes from and to. One range is served, of several all
    of the content, as HTTP allows; so it is where it has changed since (`If-Range`).
    """
    told = {**headers, "Accept-Ranges": "bytes"}
    match = _RANGE.fullmatch(asked.get("range", ""))
    if match is None or not (match[1] or match[2]) or asked.get("if-range", told["ETag"]) != told["ETag"]:
        return _sent(read, 0, size, 200, kind, told)
    start, stop = _ends(match[1], match[2], size)
    if start >= stop:
        return Response(status_code=416, headers={**told, "Content-Range": f"bytes */{size}"})
    told["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return _sent(read, start, stop, 206, kind, told)


def _ends(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


def _sent(
    read: Callable[[int, int], bytes], start: int, stop: int, status: int, kind: str, headers: Mapping[str, str]
) -> Response:
    def blocks() -> Iterator[bytes]:
        for begin in range(start, stop, _BLOCK):
            yield read(begin, min(begin + _BLOCK, stop))

    told = {**headers, "Content-Length": str(stop - start)}
    return StreamingResponse(blocks(), status, headers=told, media_type=kind)
