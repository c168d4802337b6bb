# ruff: noqa: N802 - Geant4 calls methods by these names
"""The process that runs Geant4: `python -m clew.recipes.fastsim.generate.geant4_simulation FOLDER`.

It reads `request.npz` in the folder and writes `voxels.npy`: energies in silicon, MeV, (showers, voxels).
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clew.recipes.fastsim.generate.geant4_physics import CppLibrary, register_processes
from clew.recipes.fastsim.generate.geant4_readout import Binning, SiliconReadout
from clew.recipes.fastsim.generate.parametric import Floats

TUNGSTEN, SILICON = 1.4, 0.3
"""Thickness, mm."""
PRODUCTION_CUT = 0.7
"""Particles with a shorter range are not produced, mm."""


class SimulationRequest:
    """The particles to simulate, and the calorimeter."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.particle = str(file["particle"])
            self.energy, self.theta, self.phi = (file[name].tolist() for name in ("energy", "theta", "phi"))
            self.seeds: list[int] = file["seeds"].tolist()
            self.rings: list[float] = file["rings"].tolist()
            self.layers, self.angles, self.pairs = file["bins"].tolist()


def simulate(request: SimulationRequest, folder: Path) -> Floats:
    """Run Geant4 for all particles, with files in `folder`. It can be called once in a process."""
    g4 = _import_geant4(folder)
    library = CppLibrary(g4.__file__)
    pitch = request.pairs * (TUNGSTEN + SILICON)
    readout = SiliconReadout(Binning(request.layers, request.angles, tuple(request.rings), pitch))
    voxels = np.zeros((len(request.energy), readout.size))
    with _silent():
        manager = g4.G4RunManagerFactory.CreateRunManager(g4.G4RunManagerType.Serial)
        parameters = g4.G4EmParameters.Instance()
        parameters.SetDefaults()
        parameters.SetFluo(False)
        parameters.SetVerbose(0)
        sensor = _sensor(g4)
        physics = _physics(g4, library)
        physics.SetDefaultCutValue(PRODUCTION_CUT)
        parts = _detector(g4, sensor, request), physics, _actions(g4, request, readout, voxels)
        for part in parts:
            manager.SetUserInitialization(part)
        manager.Initialize()
        readout.attach(sensor, library)
        manager.BeamOn(len(request.energy))
    return voxels


def _import_geant4(folder: Path) -> Any:
    """Import Geant4 without its data sets. Nothing here needs an excited nucleus, so the list of levels is empty."""
    (folder / "ENSDFSTATE.dat").touch()
    os.environ.update(GEANT4_DATA_DIR=str(folder), G4ENSDFSTATEDATA=str(folder))
    os.environ.pop("G4LEDATA", None)
    import geant4_pybind

    return geant4_pybind


def _sensor(g4: Any) -> Any:
    class _Sensor(g4.G4VSensitiveDetector):  # type: ignore[misc]
        def ProcessHits(self, step: Any, history: Any) -> bool:
            raise RuntimeError("the read-out is not attached")

    return _Sensor("silicon")


def _detector(g4: Any, sensor: Any, request: SimulationRequest) -> Any:
    radius = request.rings[-1]
    pitch = TUNGSTEN + SILICON

    class _Detector(g4.G4VUserDetectorConstruction):  # type: ignore[misc]
        def Construct(self) -> Any:
            material = g4.G4NistManager.Instance().FindOrBuildMaterial
            world = g4.G4LogicalVolume(g4.G4Box("world", 200.0, 200.0, 400.0), material("G4_Galactic"), "world")
            top = g4.G4PVPlacement(None, g4.G4ThreeVector(), world, "world", None, False, 0)
            self.volumes = [world, top]
            depth = 0.0
            for name, thickness in (("tungsten", TUNGSTEN), ("silicon", SILICON)):
                solid = g4.G4Tubs(name, 0.0, radius, thickness / 2, 0.0, 2 * math.pi)
                volume = g4.G4LogicalVolume(solid, material("G4_W" if name == "tungsten" else "G4_Si"), name)
                self.volumes.append(volume)
                for pair in range(request.layers * request.pairs):
                    place = g4.G4ThreeVector(0.0, 0.0, pair * pitch + depth + thickness / 2)
                    self.volumes.append(g4.G4PVPlacement(None, place, volume, name, world, False, pair))
                depth += thickness
            return top

        def ConstructSDandField(self) -> None:
            g4.G4SDManager.GetSDMpointer().AddNewDetector(sensor)
            self.SetSensitiveDetector("silicon", sensor)

    return _Detector()


def _physics(g4: Any, library: CppLibrary) -> Any:
    class _Physics(g4.G4VUserPhysicsList):  # type: ignore[misc]
        def ConstructParticle(self) -> None:
            for particle in (g4.G4Gamma, g4.G4Electron, g4.G4Positron, g4.G4Proton):
                particle.Definition()

        def ConstructProcess(self) -> None:
            register_processes(library)

        def SetCuts(self) -> None:
            self.SetCutsWithDefault()

    return _Physics()


def _actions(g4: Any, request: SimulationRequest, readout: SiliconReadout, voxels: Floats) -> Any:
    class _Gun(g4.G4VUserPrimaryGeneratorAction):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gun = g4.G4ParticleGun(1)
            kind = g4.G4Electron if request.particle == "electron" else g4.G4Gamma
            self.gun.SetParticleDefinition(kind.Definition())

        def GeneratePrimaries(self, event: Any) -> None:
            number = event.GetEventID()
            g4.G4Random.setTheSeed(request.seeds[number])
            theta, phi = request.theta[number], request.phi[number]
            x, y, z = math.sin(theta) * math.cos(phi), math.sin(theta) * math.sin(phi), math.cos(theta)
            self.gun.SetParticlePosition(g4.G4ThreeVector(-x, -y, -z))  # the front is hit at the origin
            self.gun.SetParticleMomentumDirection(g4.G4ThreeVector(x, y, z))
            self.gun.SetParticleEnergy(request.energy[number])
            self.gun.GeneratePrimaryVertex(event)

    class _EventEnd(g4.G4UserEventAction):  # type: ignore[misc]
        def EndOfEventAction(self, event: Any) -> None:
            voxels[event.GetEventID()] = readout.take()

    class _Actions(g4.G4VUserActionInitialization):  # type: ignore[misc]
        def Build(self) -> None:
            self.actions = _Gun(), _EventEnd()
            for action in self.actions:
                self.SetUserAction(action)

    return _Actions()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Send what Geant4 prints to nowhere. Python's own errors are still printed."""
    sys.stdout.flush()
    before = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def _main() -> None:
    folder = Path(sys.argv[1])
    np.save(folder / "voxels.npy", simulate(SimulationRequest(folder / "request.npz"), folder))
    sys.stdout.flush()
    os._exit(0)  # Geant4 may crash when its objects are destroyed


if __name__ == "__main__":
    _main()
