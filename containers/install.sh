#!/bin/sh
# Inside an image: torch first, which settles its build, then all else at the versions of the lock file.
set -eu
pip="python3 -m pip install --no-cache-dir --disable-pip-version-check"
$pip ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.lock)"
$pip -r requirements.lock
$pip --no-deps --no-build-isolation .
