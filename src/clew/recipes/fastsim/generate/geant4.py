"""Showers of Geant4, simulated in a process of its own.

Geant4 keeps global state and may crash when it ends, so the simulation never runs in the caller's process.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clew.errors import ConfigError, WorkerError
from clew.recipes.fastsim.generate import materials
from clew.recipes.fastsim.generate.parametric import Floats, Particles
from clew.recipes.fastsim.geometry import CylinderLayer, Geometry

PACKAGE, VERSION = "geant4-pybind", "0.1.3"
"""The simulation calls C++ symbols and reads C++ objects of this version of the package."""
PARTICLES = ("electron", "photon")
SYSTEM_PACKAGES = "libgl1 libx11-6 libxext6 libsm6 libice6"
"""Debian packages of the shared libraries that the package loads and does not contain."""


def make_showers(
    particle: str, particles: Particles, seeds: NDArray[np.int64], geometry: Geometry, pairs: int
) -> Floats:
    """Simulate one shower for each particle. A shower depends on its own particle and seed only.

    Args:
        particle: `electron` or `photon`.
        particles: Energies and directions.
        seeds: A seed for each particle.
        geometry: 45 equal layers of rings and angles.
        pairs: Pairs of tungsten and silicon per layer.

    Returns:
        Energies of voxels in MeV (showers, voxels): the energy in silicon over the sampling fraction. Voxels below the
        threshold are 0.

    Raises:
        ConfigError: The particle has no models, or Geant4 or a library that it loads is not installed.
        WorkerError: The simulation failed.
    """
    check_geant4(particle)
    layer = geometry.layers[0]
    assert isinstance(layer, CylinderLayer)
    with tempfile.TemporaryDirectory(prefix="clew-geant4-") as name:
        folder = Path(name)
        np.savez(
            folder / "request.npz",
            particle=np.array(particle),
            energy=particles.energy,
            theta=particles.theta,
            phi=particles.phi,
            seeds=seeds,
            rings=np.array(layer.radial_edges),
            bins=np.array([materials.LAYERS, layer.angular_bins, pairs]),
        )
        command = [sys.executable, "-P", "-m", "clew.recipes.fastsim.generate.geant4_simulation", name]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if ended.returncode != 0 or not (folder / "voxels.npy").exists():
            lines = [line for line in ended.stderr.splitlines() if line.strip()]
            message = lines[-1] if lines else "no message"
            if missing := re.match(r"ImportError: (?:\S*/)?(lib[^/\s]+\.so[.\d]*): ", message):
                raise ConfigError(
                    f"generator.kind geant4: Geant4 cannot load the system's {missing[1]}; "
                    f"on Debian or Ubuntu: apt-get install {SYSTEM_PACKAGES}"
                )
            raise WorkerError(f"Geant4 ended with code {ended.returncode}: {message}")
        silicon = np.load(folder / "voxels.npy")
    voxels = silicon / materials.SAMPLING_FRACTION
    return np.where(voxels < materials.THRESHOLD, 0.0, voxels)


def check_geant4(particle: str) -> None:
    """Check that Geant4 can simulate a particle here.

    Raises:
        ConfigError: The particle has no models, or the package is missing or has another version.
    """
    if particle not in PARTICLES:
        raise ConfigError(
            f"generator.particle {particle}: Geant4 has no models of hadrons without its data sets; "
            "set generator.kind to parametric"
        )
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if version != VERSION:
        reason = f"version {version} is installed" if version else "it is not installed"
        raise ConfigError(f"generator.kind geant4 needs {PACKAGE} {VERSION}, and {reason}; pip install 'clew[geant4]'")
