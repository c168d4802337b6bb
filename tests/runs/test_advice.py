from __future__ import annotations

from dataclasses import replace

import pytest

from clew import Run
from clew.runs.advice import communication_advice
from clew.runs.summary import summarize
from clew.runs.times import RunTimes


@pytest.mark.parametrize(
    ("workers", "share", "advice"),
    [
        (1, 0.9, ""),
        (2, 0.49, ""),
        (2, 0.6, "2 workers were probably slower than one: 60% of the time was communication."),
        (4, 0.6, "4 workers were at most 1.6 times as fast as one: 60% of the time was communication."),
    ],
)
def test_workers_that_mostly_communicate_get_advice(run: Run, workers: int, share: float, advice: str) -> None:
    summary = summarize(run)
    times = RunTimes(train_seconds=1.0, communicate_seconds=share)
    text = communication_advice(replace(summary, workers=workers, times=times))
    assert text.startswith(advice) if advice else text == ""
    assert not advice or ("--workers 1" in text and "--batch-size" in text)
