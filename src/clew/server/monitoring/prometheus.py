"""Counts requests and writes the numbers in the text format of Prometheus."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""Upper limits of the histogram of response times, in seconds."""


class RequestMetrics:
    """Numbers and times of requests by route. Only the event loop's thread changes them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.seconds: Counter[str] = Counter()

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self.requests[method, route, status] += 1
        self.times[route][bisect.bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]

    def prometheus_lines(self) -> Iterator[str]:
        """Yield the lines that Prometheus reads."""
        yield "# TYPE clew_requests_total counter"
        for (method, route, status), count in sorted(self.requests.items()):
            yield f'clew_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
        yield "# TYPE clew_request_seconds histogram"
        for route, counts in sorted(self.times.items()):
            total = 0
            for limit, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield f'clew_request_seconds_bucket{{route="{route}",le="{limit}"}} {total}'
            yield f'clew_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}'
            yield f'clew_request_seconds_count{{route="{route}"}} {total}'
