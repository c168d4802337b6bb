"""HTTP responses with a content that is not a local file: all of it, or the byte range of the request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fastapi.responses import Response, StreamingResponse

_BLOCK = 1 << 22
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True)
class RemoteContent:
    """A content that is read in blocks."""

    read: Callable[[int, int], bytes]
    """Returns the bytes from a position to another."""
    size: int
    media_type: str

    def blocks(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from `start` to `stop` in blocks."""
        for begin in range(start, stop, _BLOCK):
            yield self.read(begin, min(begin + _BLOCK, stop))


def range_response(request_headers: Mapping[str, str], content: RemoteContent, headers: Mapping[str, str]) -> Response:
    """Return the response to a request with a `Range` header.

    One range is served. For several ranges, or if the content changed since (`If-Range`), all of the content is sent,
    as HTTP allows.

    Args:
        request_headers: Headers of the request.
        content: The content.
        headers: Headers of the response, with an `ETag`.
    """
    all_headers = {**headers, "Accept-Ranges": "bytes"}
    match = _RANGE.fullmatch(request_headers.get("range", ""))
    unchanged = request_headers.get("if-range", all_headers["ETag"]) == all_headers["ETag"]
    if match is None or not (match[1] or match[2]) or not unchanged:
        return _stream(content, 0, content.size, 200, all_headers)
    start, stop = _byte_range(match[1], match[2], content.size)
    if start >= stop:
        return Response(status_code=416, headers={**all_headers, "Content-Range": f"bytes */{content.size}"})
    all_headers["Content-Range"] = f"bytes {start}-{stop - 1}/{content.size}"
    return _stream(content, start, stop, 206, all_headers)


def _byte_range(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1, size) if last else size


def _stream(content: RemoteContent, start: int, stop: int, status: int, headers: Mapping[str, str]) -> Response:
    all_headers = {**headers, "Content-Length": str(stop - start)}
    return StreamingResponse(content.blocks(start, stop), status, headers=all_headers, media_type=content.media_type)
