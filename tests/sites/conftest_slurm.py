"""A cluster for the session, a profile of it, and a folder to work in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clew.core.config import to_yaml
from tests.sites.cluster import PATH, Cluster, missing

# without `mpi`: PMI-2 of Slurm 22.05 sometimes splits a message of the MPICH of PyPI, and MPI_Init hangs
PROFILE = {"scheduler": "slurm", "poll_seconds": 0.3, "wall_time": 600, "wall_time_limit": 3600}


OPEN_MPI = "libmpi.so.40"


def site_mpi() -> str:
    """Return why the MPI of the site, Open MPI with PMIx, cannot be used here; '' if it can."""
    libraries = subprocess.run(
        [shutil.which("ldconfig", path=PATH) or "ldconfig", "-p"], capture_output=True, text=True
    )
    installed = OPEN_MPI in libraries.stdout and "libpmix.so " in libraries.stdout
    return "" if installed else "no Open MPI and PMIx here (apt-get install libopenmpi3 libpmix-dev)"


@pytest.fixture
def mpi_site(site: Cluster, tmp_path: Path) -> Cluster:
    """As `site`, with the cluster's own MPI in its profile."""
    reason = site_mpi()
    if reason:
        pytest.skip(reason)
    profile = {**PROFILE, "mpi": "pmix", "environment": {"MPI4PY_LIBMPI": OPEN_MPI}}
    (tmp_path / "sites" / "here.yaml").write_text(to_yaml(profile))
    return site


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three virtual nodes of real Slurm."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster as the site `here`; the test works in tmp_path."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("CLEW_SITES", str(tmp_path / "sites"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "here.yaml").write_text(to_yaml(PROFILE))
    return cluster
