"""The recipe `fastsim`: generate the shower of a particle in a calorimeter from its energy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Recipe, Table, figure
from clew.data.transforms import Transform
from clew.errors import ConfigError, DataError
from clew.metrics import Metric
from clew.recipes.fastsim import display, shower_files
from clew.recipes.fastsim import metrics as shower_metrics
from clew.recipes.fastsim.columns import ENERGY, EVENT, PHI, THETA, VOXELS
from clew.recipes.fastsim.features import Showers
from clew.recipes.fastsim.generate import materials
from clew.recipes.fastsim.generate import showers as generator
from clew.recipes.fastsim.geometry import Geometry
from clew.recipes.fastsim.settings import FastSimulationConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew import Batch

NOISE = "noise"
"""Column of samples, float32 (latent): the random numbers from which the shower of this sample is generated."""


class FastSimulation(Recipe):
    """Generates showers with adversarial networks."""

    Config = FastSimulationConfig
    defaults = {
        "train": {
            "epochs": 30,
            "batch_size": 64,
            "optimizer": {"name": "rmsprop", "lr": 3e-4, "lr_batch": 64},
            "best": {"metric": "separation/layers", "direction": "minimize"},
        }
    }
    columns = (ENERGY, VOXELS, NOISE)
    events_per_file = generator.SHOWERS_PER_FILE
    timed_batches = (1, 100, 10_000)

    def read(self, path: str) -> Iterable[Table]:
        """Read HDF5 files of the CaloChallenge, files of grids, or tables with the same columns."""
        return shower_files.read_showers(path, self.config.geometry)

    def transforms(self) -> Sequence[Transform]:
        return tuple(self.config.transforms)

    def label_columns(self) -> Sequence[str]:
        """Showers are only needed to train: `clew predict` generates them from incident energies alone."""
        return (VOXELS,)

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Generate showers of single particles."""
        settings = self.config
        yield from generator.write_generated(
            events, seed, folder, first=first, config=settings.generator, geometry=settings.geometry
        )

    def prepare(self, events: Table) -> Table:
        """Check the showers, and add the random numbers from which evaluations generate.

        Raises:
            DataError: A shower is not valid.
        """
        if VOXELS in events:
            shower_files.check_showers(events, self.config.geometry.load().voxels)
        energy = events.fixed(ENERGY).astype(np.float32)
        number = events.fixed(EVENT) if EVENT in events else np.arange(len(events))
        seeds = zip(number.tolist(), energy.view(np.uint32).tolist(), strict=True)
        noise = [np.random.default_rng(seed).standard_normal(self.config.model.latent, np.float32) for seed in seeds]
        optional = {name: events.fixed(name) for name in (EVENT, VOXELS, THETA, PHI) if name in events}
        return Table({**optional, ENERGY: energy, NOISE: np.stack(noise)}, units={ENERGY: "MeV"})

    def model(self) -> nn.Module:
        """Both networks.

        Raises:
            ConfigError: The layers of the geometry are not equal.
        """
        from clew.recipes.fastsim.gan import ShowerGAN

        return ShowerGAN(self._shape(), self.config.model.latent, self.config.model.channels)

    def optimizers(self, model: Any) -> Mapping[str, Any]:
        return {"discriminator": model.discriminator.parameters(), "generator": model.generator.parameters()}

    def forward(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the generated shower of each sample, from the noise of the sample.

        Raises:
            DataError: The dataset was prepared for another geometry or another model.
        """
        self._check_batch(batch)
        return {VOXELS: model(batch[ENERGY], batch[NOISE])}

    def step(self, model: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """Yield the loss of the discriminator, then that of the generator against the improved discriminator."""
        from clew.recipes.fastsim.gan import adversarial_loss

        energy, voxels, weight = batch[ENERGY], batch[VOXELS], self.config.model.energy_weight
        generated = model.draw(energy).detach()
        true_loss = adversarial_loss(model.discriminator(voxels, energy), voxels, energy, true=1.0, weight=weight)
        judged = model.discriminator(generated, energy)
        yield "discriminator", true_loss + adversarial_loss(judged, generated, energy, true=0.0, weight=0.0)
        generated = model.draw(energy)
        judged = model.discriminator(generated, energy)
        yield "generator", adversarial_loss(judged, generated, energy, true=1.0, weight=weight)

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """Return the incident energy and the generated voxels, with those below the threshold of the read-out at 0."""
        voxels = np.asarray(outputs[VOXELS])
        return Table(
            {ENERGY: samples.fixed(ENERGY), VOXELS: np.where(voxels < materials.THRESHOLD, 0, voxels)},
            units={ENERGY: "MeV", VOXELS: "MeV"},
        )

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        if VOXELS not in samples:
            return {}
        return shower_metrics.compare_showers(_showers(samples), _showers(objects), self.config.geometry.load())

    def sample_plots(self, samples: Table) -> Mapping[str, figure.Figure]:
        return self._pictures(samples, "shower")

    def display(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, figure.Figure]:
        if VOXELS not in samples:
            return self._pictures(objects, "generated shower")
        from clew.recipes.fastsim.quality.report import shower_pictures

        return shower_pictures(_showers(samples), _showers(objects), self.config.geometry.load())

    def comparison_size(self) -> int:
        return int(self.config.quality.showers)

    def compare(self, true: Table, generated: Table) -> tuple[Mapping[str, Metric], Mapping[str, figure.Figure]]:
        """Measure the figures of merit of the CaloChallenge with all showers.

        Raises:
            DataError: There are too few showers.
        """
        from clew.recipes.fastsim.quality.report import quality_report

        if VOXELS not in true:
            return {}, {}
        return quality_report(_showers(true), _showers(generated), self.config.geometry.load(), self.config.quality)

    def reference_times(self) -> Mapping[str, float]:
        """Return the recorded times of Geant4 for electrons in the calorimeter of the generator."""
        return materials.GEANT4_SECONDS if self.config.geometry.kind in ("dataset2", "dataset3") else {}

    def _pictures(self, showers: Table, kind: str) -> dict[str, figure.Figure]:
        shape = self.config.geometry.load().shape
        if shape is None or VOXELS not in showers:
            return {}
        rows = enumerate(zip(showers.fixed(VOXELS), showers.fixed(ENERGY), strict=True))
        return {
            f"{kind} {row}": display.shower_picture(voxels, shape, f"{kind} of {energy / 1000:.3g} GeV")
            for row, (voxels, energy) in rows
        }

    def _check_batch(self, batch: Batch) -> None:
        geometry, latent = self.config.geometry.load(), self.config.model.latent
        if VOXELS in batch.columns and batch[VOXELS].shape[1] != geometry.voxels:
            raise DataError(
                f"the dataset has showers of {batch[VOXELS].shape[1]} voxels, but {geometry.name} has "
                f"{geometry.voxels}; set geometry.kind as it was for clew prepare"
            )
        if batch[NOISE].shape[1] != latent:
            raise DataError(
                f"the dataset has {batch[NOISE].shape[1]} random numbers per shower, but model.latent is {latent}; "
                f"prepare it again: clew prepare fastsim --set model.latent={latent}"
            )

    def _shape(self) -> tuple[int, int, int]:
        geometry: Geometry = self.config.geometry.load()
        if geometry.shape is None:
            raise ConfigError(f"model.kind gan needs equal layers, and those of {geometry.name} differ")
        return geometry.shape


def _showers(table: Table) -> Showers:
    return Showers(table.fixed(ENERGY), table.fixed(VOXELS))
