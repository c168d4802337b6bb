"""Advice at the end of a run, from its records."""

from __future__ import annotations

from clew.runs.summary import Summary

_MIN_LOSS = 0.5
"""Advice is given if less than this fraction of the workers' speed is used."""


def communication_advice(summary: Summary) -> str:
    """Return advice for a run whose workers spent most of their time communicating, or ''.

    A step of n workers takes computing plus communication. One worker needs at most n times the computing, so the
    speed-up is at most n times the share of the time that is not communication.

    Args:
        summary: The summary of the run.
    """
    workers, share = summary.workers, summary.times.shares.get("communicate", 0.0)
    speed_up = workers * (1 - share)
    if workers < 2 or speed_up >= _MIN_LOSS * workers:
        return ""
    result = "probably slower than one" if speed_up < 1 else f"at most {speed_up:.1f} times as fast as one"
    return (
        f"{workers} workers were {result}: {share:.0%} of the time was communication. For a model this small use "
        "--workers 1, a larger --batch-size, or a strategy that exchanges less often (--strategy diloco)"
    )
