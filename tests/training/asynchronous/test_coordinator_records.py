"""The records of a training with a master: their times add up to the time that passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clew import Run
from clew.data.dataset.sampler import Sampler
from clew.runs import RecordWriter
from clew.settings import load_settings
from clew.training.asynchronous import coordinator_records
from clew.training.asynchronous.coordinator_records import CoordinatorRecords
from tests.clock import Clock
from tests.training.conftest import flat_dataset
from tests.training.recipes import line

LINE = str(Path(line.__file__))


def report(seconds: float) -> dict[str, Any]:
    """Return the report of a worker on ten samples that took it some seconds."""
    times = {"seconds": seconds, "wait": 0.0, "communicate": 0.0, "load": 0.0}
    return {"samples": 10, "losses": {"loss": (5.0, 10.0)}, **times}


def test_all_time_after_the_first_report_is_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reports the seconds of its own steps. Between two rounds of steps it exchanges weights."""
    clock = Clock()
    monkeypatch.setattr(coordinator_records, "time", clock)
    data = flat_dataset(tmp_path)
    settings = load_settings(LINE, [f"train.dataset={data.path}"])
    run = Run(tmp_path / "run")
    writer, sampler = RecordWriter(run.records_folder / "rank-0.jsonl"), Sampler(samples=100, batch_size=10)
    records = CoordinatorRecords(run, settings.recipe, settings.train, writer, settings.recipe.model(), sampler)
    for step, now in enumerate((100.0, 103.0, 108.0), start=1):
        clock.seconds = now
        records.add_report(report(seconds=2.0))
        records.write_step(step, workers=1)
    records.close()
    writer.close()
    assert [record["seconds"] for record in run.records("rank-0", "step")] == [2.0, 3.0, 5.0]
