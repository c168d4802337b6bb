"""Jobs whose samples, datasets and models are in a real S3 store."""

from __future__ import annotations

import time
from pathlib import Path

from clew import Dataset
from tests.sites.conftest_s3 import S3
from tests.sites.own_data import samples_to_model, service_with_agent
from tests.tuning.conftest import flat

__all__ = ["flat"]


def test_samples_in_s3_become_a_model_in_s3(s3: S3, flat: Dataset, tmp_path: Path) -> None:
    import s3fs

    bucket = f"jobs-{time.time_ns()}"
    s3fs.S3FileSystem().mkdir(bucket)
    events = tmp_path / "events"
    events.mkdir()
    for file in flat.path.parent.glob("*.h5"):
        (events / file.name).write_bytes(file.read_bytes())
    with service_with_agent(tmp_path) as client:
        samples_to_model(client, events, f"s3://{bucket}/events", f"s3://{bucket}/mine")
