#!/bin/sh
# Inside an image: torch first, which settles its build, then clew and what it needs at the versions of the lock file.
# Where a folder /wheels is mounted, everything comes from it and no network is used.
set -eu
pip="python3 -m pip install --no-cache-dir --no-compile --disable-pip-version-check"
if [ -d /wheels ]; then pip="$pip --no-index --find-links /wheels"; fi
grep -v '^triton==' requirements.lock >/tmp/constraints.txt # each build of torch brings its own
$pip ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' requirements.lock)"
$pip --constraint /tmp/constraints.txt hatchling
$pip --constraint /tmp/constraints.txt --no-build-isolation ".[${EXTRAS:-}]"
rm /tmp/constraints.txt
