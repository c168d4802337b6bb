"""S3. Parts are sent by multipart upload, which another process can resume. The SHA-256 is metadata of the object.

Keys, profile, endpoint and region come from the usual places of S3 clients: AWS_ACCESS_KEY_ID, AWS_PROFILE,
AWS_ENDPOINT_URL, ~/.aws. clew does not store them.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from clew.storage.fsspec_store import FsspecStore
from clew.storage.store import LocalFile, StoredFile, StoreWriter


class S3Store(FsspecStore):
    """S3 through s3fs."""

    options: Mapping[str, Any] = {
        "use_listings_cache": False,
        "config_kwargs": {
            "retries": {"max_attempts": 1},  # transfers retry themselves
            "connect_timeout": 10,
            "request_checksum_calculation": "when_required",  # parts carry an MD5; some servers know no other checksum
            "response_checksum_validation": "when_required",
        },
    }

    def open(self, location: str) -> tuple[Any, str]:
        system, path = super().open(location)
        system.retries = 1
        return system, path

    def files(self, location: str) -> dict[str, StoredFile]:
        files = super().files(location)
        if not files:
            system, path = self.open(location)
            _check_bucket(system, path.partition("/")[0])
        return files

    def checksums(self, file: StoredFile) -> Mapping[str, str]:
        system, path = self.open(file.location)
        bucket, _, key = path.partition("/")
        head = system.call_s3("head_object", Bucket=bucket, Key=key)
        known = {"sha256": head.get("Metadata", {}).get("sha256", "")}
        tag = head.get("ETag", "").strip('"')
        if re.fullmatch("[0-9a-f]{32}", tag) and head.get("ServerSideEncryption") in (None, "AES256"):
            known["md5"] = tag
        return {name: value for name, value in known.items() if value}

    def writer(self, location: str, source: LocalFile, memory: dict[str, Any], part: int) -> StoreWriter:
        system, path = self.open(location)
        bucket, _, key = path.partition("/")
        where = {"Bucket": bucket, "Key": key}
        if "upload" not in memory:
            _check_bucket(system, bucket)
        if source.size > part and "upload" not in memory:
            upload = system.call_s3("create_multipart_upload", **where, Metadata={"sha256": source.sha256})
            memory["upload"] = upload["UploadId"]
        return _MultipartWriter(system, where, source, memory.get("upload"))


def _check_bucket(system: Any, bucket: str) -> None:
    """Check that a bucket exists: some servers would create it. A user who may write may lack permission to check."""
    try:
        system.call_s3("head_bucket", Bucket=bucket)
    except FileNotFoundError:
        raise FileNotFoundError("NoSuchBucket") from None
    except PermissionError:
        return


class _MultipartWriter:
    """Multipart upload; a file of one part is a plain object. The server checks the MD5 of every part."""

    def __init__(self, system: Any, where: dict[str, str], source: LocalFile, upload: str | None) -> None:
        self._system, self._where, self._source, self._upload = system, where, source, upload

    def write(self, number: int, offset: int, data: bytes) -> str:
        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        more: dict[str, Any] = {"Body": data, "ContentMD5": digest, **self._where}
        if self._upload is None:
            return str(self._system.call_s3("put_object", Metadata={"sha256": self._source.sha256}, **more)["ETag"])
        sent = self._system.call_s3("upload_part", UploadId=self._upload, PartNumber=number + 1, **more)
        return str(sent["ETag"])

    def close(self, receipts: Mapping[int, Any]) -> None:
        if self._upload is None:
            return
        parts = [{"PartNumber": number + 1, "ETag": tag} for number, tag in sorted(receipts.items())]
        self._system.call_s3(
            "complete_multipart_upload", UploadId=self._upload, MultipartUpload={"Parts": parts}, **self._where
        )

    def drop(self) -> None:
        if self._upload is not None:
            self._system.call_s3("abort_multipart_upload", UploadId=self._upload, **self._where)
