"""Files up to a real S3 and down again: clew's transfers against plain fsspec (s3fs) and botocore, in one run.

No bar is set for this: what clew adds (parts that can be resumed, and a checksum of every file before it gets its
name) costs reading, and the table says how much. SeaweedFS, server and clients share this machine, so speeds are
not those of a network. Contestants take turns, a file each, in an order shuffled every round; compared are medians,
and clew against itself shows what noise is left. XRootD and its xrdcp join where `--xrootd root://HOST//FOLDER` names
a server that may be written to.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from clew import storage
from clew.runs.environment import capture
from tests.sites.conftest_s3 import serving

BUCKET = "bench"
Way = Callable[[str, Path], None]
"""Copies between a location and a local file."""


def contestants() -> dict[str, tuple[Way, Way]]:
    """The upload and download of each contestant."""
    import botocore.session
    import s3fs

    boto: Any = botocore.session.get_session().create_client("s3")
    boto.create_bucket(Bucket=BUCKET)
    plain: Any = s3fs.S3FileSystem()

    def boto_up(place: str, file: Path) -> None:
        with file.open("rb") as stream:
            boto.put_object(Bucket=BUCKET, Key=place.rpartition("/")[2], Body=stream)

    def boto_down(place: str, file: Path) -> None:
        with file.open("wb") as stream:
            shutil.copyfileobj(boto.get_object(Bucket=BUCKET, Key=place.rpartition("/")[2])["Body"], stream, 1 << 20)

    clew: tuple[Way, Way] = (lambda place, file: _copy(file, place), lambda place, file: _copy(place, file))
    return {
        "clew": clew,
        "clew again": clew,
        "s3fs": (
            lambda place, file: plain.put_file(str(file), place),
            lambda place, file: plain.get_file(place, str(file)),
        ),
        "botocore": (boto_up, boto_down),
    }


def _copy(source: str | Path, target: str | Path) -> None:
    storage.copy(source, target)


def xrootd() -> dict[str, tuple[Way, Way]]:
    """With clew, and with the command of XRootD."""

    def xrdcp(source: str | Path, target: str | Path) -> None:
        command = ["xrdcp", "--silent", "--cksum", "adler32:source", str(source), str(target)]
        subprocess.run(command, check=True, capture_output=True)

    clew: tuple[Way, Way] = (lambda place, file: _copy(file, place), lambda place, file: _copy(place, file))
    return {"clew": clew, "clew again": clew, "xrdcp": (lambda p, f: xrdcp(f, p), lambda p, f: xrdcp(p, f))}


def measure(ways: dict[str, tuple[Way, Way]], base: str, folder: Path, *, size: int, rounds: int) -> dict[str, Any]:
    """Megabytes per second, up and down."""
    speeds: dict[str, dict[str, list[float]]] = {name: {"up": [], "down": []} for name in ways}
    for turn in range(rounds):
        order = list(ways)
        random.shuffle(order)
        for name in order:
            file = folder / "file.bin"
            file.write_bytes(os.urandom(size))
            place, back = f"{base}/{name.replace(' ', '-')}-{turn}", folder / "back.bin"
            for kind, way in zip(("up", "down"), ways[name], strict=True):
                start = time.perf_counter()
                way(place, file if kind == "up" else back)
                speeds[name][kind].append(size / 1e6 / (time.perf_counter() - start))
            assert back.read_bytes() == file.read_bytes(), name
            back.unlink()
    return {name: {kind: statistics.median(each) for kind, each in both.items()} for name, both in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller files, fewer rounds")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--xrootd", metavar="URL", help="a folder of an XRootD server, for xrdcp")
    arguments = parser.parse_args()
    size, rounds = (32 << 20, 3) if arguments.quick else (256 << 20, 5)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["CLEW_CACHE"] = str(folder / "cache")
        with serving(folder, volume_megabytes=512) as s3:
            os.environ.update(s3.environment())
            results = {"S3": measure(contestants(), f"s3://{BUCKET}", folder, size=size, rounds=rounds)}
        if arguments.xrootd:
            results["XRootD"] = measure(xrootd(), arguments.xrootd, folder, size=size, rounds=rounds)
    print(f"{size / 1e6:.0f} MB files, {rounds} rounds, MB/s (medians); no bar is set")
    for store, measured_speeds in results.items():
        for name, both in measured_speeds.items():
            print(f"  {store:7s} {name:12s} up {both['up']:8.1f}   down {both['down']:8.1f}")
    if arguments.json:
        document = {"bars": [], "speeds": results, "conditions": {**capture(), "load": psutil.getloadavg()}}
        arguments.json.write_text(json.dumps(document, indent=1, default=str))


if __name__ == "__main__":
    main()
