#!/usr/bin/env bash
# Builds both images with buildah, as root and without a registry of images: the base is made by debootstrap, and this
# machine's pip gets the wheels (torch for processors if pip is set up so). Run it from the repository's root:
#   containers/build.sh [FOLDER]      FOLDER keeps the wheels for the next time (default: a temporary one)
# Makes localhost/clew-base (reused if there is one), localhost/clew and localhost/clew-particleflow-bmk.
# EXTRAS: extras of clew to install; EVENTS: events in the workload's image; PYTHON: Python 3.11 with pip.
set -euo pipefail
cd "$(dirname "$0")/.."
EXTRAS="${EXTRAS-mpi,nvml,onnx,hep}" EVENTS="${EVENTS:-2600}" PYTHON="${PYTHON:-python3}"
folder="${1:-$(mktemp -d)}"
[ $# -gt 0 ] || trap 'rm -rf "$folder"' EXIT
wheels="$folder/wheels"
mkdir -p "$wheels"

# Debian 12 has Python 3.11, as the lock file. Its pip installs into the system only without the file removed here.
base() {
    local root="$folder/base"
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates bookworm "$root" >"$folder/base.log" ||
        { tail -5 "$folder/base.log" >&2; return 1; }
    rm -rf "$root"/usr/lib/python3*/EXTERNALLY-MANAGED "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" --one-file-system -c . | podman import --quiet - localhost/clew-base >/dev/null
    rm -rf "$root"
}

download() { "$PYTHON" -m pip download --quiet --quiet --disable-pip-version-check --dest "$wheels" --find-links "$wheels" "$@"; }

get_wheels() {
    grep -v '^triton==' requirements.lock >"$folder/constraints.txt"
    download "$(grep '^torch==' requirements.lock)"
    download --constraint "$folder/constraints.txt" hatchling ".[$EXTRAS]"
    rm -f "$wheels"/clew-*
}

build() { buildah bud --quiet --layers --isolation chroot --volume "$wheels:/wheels:ro" "$@" . >/dev/null; }

podman image exists localhost/clew-base || base
get_wheels
build --build-arg BASE=localhost/clew-base --build-arg EXTRAS="$EXTRAS" -f containers/Dockerfile -t localhost/clew
build --build-arg CLEW=localhost/clew --build-arg EVENTS="$EVENTS" -f containers/Dockerfile.particleflow \
    -t localhost/clew-particleflow-bmk
podman images --format '{{.Repository}}:{{.Tag}} {{.Size}} {{.Digest}}' --filter reference='localhost/clew*'
