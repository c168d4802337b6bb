"""The contract of stores, for a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew.storage.s3 import S3Store
from clew.testing import StoreContract


@pytest.mark.usefixtures("s3")
class TestS3(StoreContract):
    store = S3Store
    part = 5 << 20  # the smallest part that S3 allows

    def location(self, tmp_path: Path) -> str:
        import s3fs

        s3fs.S3FileSystem().makedirs("shared", exist_ok=True)
        return f"s3://shared/{tmp_path.parent.name}-{tmp_path.name}"
