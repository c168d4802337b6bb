"""Both images of `containers/`, built for real, and Podman set up for this machine."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLEW, WORKLOAD = "localhost/clew", "localhost/clew-particleflow-bmk"
EVENTS = 24
"""Events in the workload's image; the image for users has 2600."""
_TOOLS = ("buildah", "debootstrap", "podman", "runc")
_STORAGE = """[storage]
driver = "{driver}"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
[storage.options.overlay]
skip_mount_home = "true"
"""
# runc: crun refuses machines with both versions of cgroups. Limits: without CAP_SYS_RESOURCE they cannot be raised.
_ENGINE = """[containers]
default_ulimits = [{limits}]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
_LIMIT = 8192


def missing() -> str:
    """Return why images cannot be built here; '' if they can."""
    absent = [tool for tool in _TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if absent:
        return f"no {', '.join(absent)} here (tools/sites-install images)"
    if sys.version_info[:2] != (3, 11):
        return "the wheels are for Python 3.11, which Debian 12 has"
    return "" if os.geteuid() == 0 else "debootstrap needs root"


def _limits() -> str:
    """Return limits that no process here has to raise."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    highest = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    numbers = {
        name: _LIMIT if value == resource.RLIM_INFINITY else min(value, _LIMIT) for name, value in highest.items()
    }
    return ", ".join(f'"{name}={value}:{value}"' for name, value in numbers.items())


def podman(*words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Podman and return what it printed; it must succeed."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build both images once, in a storage of their own. $CLEW_TEST_IMAGES: a folder that keeps what was built."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    keep = os.environ.get("CLEW_TEST_IMAGES")
    folder = Path(keep) if keep else tmp_path_factory.mktemp("images")
    folder.mkdir(exist_ok=True)
    driver = "overlay" if "overlay" in Path("/proc/filesystems").read_text() else "vfs"
    (folder / "storage.conf").write_text(_STORAGE.format(driver=driver, folder=folder))
    (folder / "containers.conf").write_text(_ENGINE.format(limits=_limits()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
        variables = {**os.environ, "EXTRAS": "nvml", "EVENTS": str(EVENTS), "PYTHON": sys.executable}
        built = subprocess.run(
            [ROOT / "containers" / "build.sh", folder], env=variables, capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
        trial = subprocess.run(["podman", "run", "--rm", "--entrypoint=true", CLEW], capture_output=True, text=True)
        if trial.returncode:
            pytest.skip(f"Podman cannot run containers here: {trial.stderr.strip()}")
        yield folder
        if not keep:
            podman("rm", "--all", "--force")
            podman("rmi", "--all", "--force")
            shutil.rmtree(folder, ignore_errors=True)
