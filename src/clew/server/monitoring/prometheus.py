"""Counting what the server does, in Prometheus' text format."""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""Seconds."""


class Meter:
    """Requests by route. The event loop's thread alone writes."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.seconds: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """Anything else: `records`, `points`, `bad_tokens`."""

    def saw(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request is done."""
        self.requests[method, route, status] += 1
        self.times[route][bisect.bisect_left(BUCKETS, seconds)] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """As Prometheus reads them."""
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
        for name, number in sorted(self.counts.items()):
            yield f"# TYPE clew_{name}_total counter"
            yield f"clew_{name}_total {number}"
