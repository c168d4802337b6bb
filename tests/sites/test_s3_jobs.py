"""Jobs whose samples, datasets and models are in a real S3 store."""

from __future__ import annotations

import time
from pathlib import Path

from clew import Dataset
from tests.sites.conftest_s3 import S3
from tests.sites.own_data import event_files, samples_to_model, service_with_agent
from tests.tuning.conftest import flat

__all__ = ["flat"]


def test_samples_in_s3_become_a_model_in_s3(s3: S3, flat: Dataset, tmp_path: Path) -> None:
    import s3fs

    bucket = f"jobs-{time.time_ns()}"
    s3fs.S3FileSystem().mkdir(bucket)
    with service_with_agent(tmp_path) as live:
        samples_to_model(live, event_files(flat, tmp_path / "events"), f"s3://{bucket}/events", f"s3://{bucket}/mine")
