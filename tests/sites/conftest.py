"""Fixtures of all sites and servers."""

from __future__ import annotations

from tests.sites.conftest_condor import condor, pool
from tests.sites.conftest_images import images
from tests.sites.conftest_rucio import rucio, rucio_server
from tests.sites.conftest_s3 import s3, s3_server
from tests.sites.conftest_service import ada, login, service
from tests.sites.conftest_slurm import cluster, mpi_site, site
from tests.sites.conftest_xrootd import strict_xrootd, xrootd

__all__ = [
    "ada",
    "cluster",
    "condor",
    "images",
    "login",
    "mpi_site",
    "pool",
    "rucio",
    "rucio_server",
    "s3",
    "s3_server",
    "service",
    "site",
    "strict_xrootd",
    "xrootd",
]
