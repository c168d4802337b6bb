"""The recipe `fastsim`: generate the shower of a particle in a calorimeter from its energy."""

from __future__ import annotations

import math
import warnings
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
from clew.recipes.fastsim.seeds import sample_seeds, uniform_numbers
from clew.recipes.fastsim.settings import FastSimulationConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from clew import Batch, Dataset
    from clew.data.writers import TableWriter

SEED = "noise_seed"
"""Column of samples, int64: the seed of the random numbers from which the shower of this sample is generated."""
SEED_OF_SAMPLES = 24
"""Seed of the random numbers of prepared samples. Generated samples have a seed of their own."""


class FastSimulation(Recipe):
    """Generates showers with adversarial networks or a flow."""

    Config = FastSimulationConfig
    defaults = {
        "train": {
            "epochs": 30,
            "batch_size": 64,
            "optimizer": {"name": "rmsprop", "lr": 3e-4, "lr_batch": 64},
            "best": {"metric": "separation/layers", "direction": "minimize"},
        }
    }
    columns = (ENERGY, THETA, PHI, VOXELS, SEED)
    events_per_file = generator.SHOWERS_PER_FILE
    timed_batches = (1, 100, 10_000)
    discrete_outputs = (VOXELS,)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        if self.config.model.kind == "gan":
            self.step = self._adversarial_step  # type: ignore[method-assign, assignment]

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
        """Check the showers, add angles of 0 where there are none, and the seeds from which evaluations generate.

        Raises:
            DataError: A shower is not valid.
        """
        if VOXELS in events:
            shower_files.check_showers(events, self.config.geometry.load().voxels)
        energy = events.fixed(ENERGY).astype(np.float32)
        angles = {
            name: events.fixed(name).astype(np.float32) if name in events else np.zeros(len(events), np.float32)
            for name in (THETA, PHI)
        }
        number = events.fixed(EVENT) if EVENT in events else np.arange(len(events))
        seeds = sample_seeds(sample_seeds(number, SEED_OF_SAMPLES) + energy.view(np.uint32), SEED_OF_SAMPLES)
        optional = {name: events.fixed(name) for name in (EVENT, VOXELS) if name in events}
        return Table({**optional, ENERGY: energy, **angles, SEED: seeds}, units={ENERGY: "MeV"})

    def draw_inputs(self, numbers: NDArray[np.int64], seed: int, ranges: Mapping[str, tuple[float, float]]) -> Table:
        """Draw particles: energies log-uniform, angles uniform, and a seed for each shower."""
        low, high = ranges["energy"]
        draws = [uniform_numbers(sample_seeds(numbers, seed * 4 + place)) for place in (1, 2, 3)]
        theta = np.radians(ranges.get("theta", (0.0, 0.0)))
        return Table(
            {
                EVENT: numbers,
                ENERGY: (1000 * low * (high / low) ** draws[0]).astype(np.float32),
                THETA: (theta[0] + (theta[1] - theta[0]) * draws[1]).astype(np.float32),
                PHI: (2 * np.pi * draws[2] * (theta[1] > 0)).astype(np.float32),
                SEED: sample_seeds(numbers, seed * 4),
            }
        )

    def check_ranges(self, model: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
        """Check the energies, and warn if some are outside the range of the training showers.

        Raises:
            ConfigError: There is no range of energies, or it is not valid.
        """
        if "energy" not in ranges:
            raise ConfigError("showers need a range of energies in GeV: --energy 1:100")
        low, high = ranges["energy"]
        if not 0 < low <= high < math.inf:
            raise ConfigError(f"--energy {low:g}:{high:g}: it must be LOW:HIGH in GeV, above 0")
        if not 0 <= ranges.get("theta", (0, 0))[0] <= ranges.get("theta", (0, 0))[1] < 90:
            raise ConfigError("--theta must be LOW:HIGH in degrees, from 0 to below 90")
        trained = None if model is None else [each / 1000 for each in model.energy_range]
        if trained and (low < 0.999 * trained[0] or high > 1.001 * trained[1]):
            warnings.warn(
                f"energies of {low:g} to {high:g} GeV: the model was trained on {trained[0]:.3g} to {trained[1]:.3g} "
                "GeV, and showers outside are extrapolations",
                stacklevel=2,
            )

    def generated_writer(self, path: Path) -> type[TableWriter]:
        """Write HDF5 files in the layout of the CaloChallenge, other files as tables."""
        return shower_files.ShowerWriter if path.suffix in (".h5", ".hdf5") else super().generated_writer(path)

    def model(self) -> nn.Module:
        """A new network.

        Raises:
            ConfigError: The layers of the geometry are not equal.
        """
        from clew.recipes.fastsim.networks import build_network

        return build_network(self.config.model, self._shape())

    def adapt(self, model: Any, dataset: Dataset) -> None:
        """Measure the tables of the model from training showers, or load those of the teacher.

        Raises:
            ConfigError: The teacher does not fit.
            DataError: The dataset was prepared for another geometry.
        """
        from clew.recipes.fastsim.networks import fit_tables, load_teacher

        self._check_dataset(dataset)
        if self.config.model.teacher:
            load_teacher(model, self.config.model)
        else:
            fit_tables(model, dataset)

    def optimizers(self, model: Any) -> Mapping[str, Any]:
        parameters: Mapping[str, Any] = model.trained_parameters()
        return parameters

    def forward(self, model: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the generated shower of each sample, from the seed of the sample."""
        from clew.recipes.fastsim.networks import particles_of

        return {VOXELS: model(particles_of(batch), batch[SEED])}

    def step(self, model: Any, batch: Batch) -> Mapping[str, Tensor]:
        """Return the losses of a flow. The GAN has steps of its own, which alternate."""
        losses: Mapping[str, Tensor] = model.losses(*self._turned_showers(batch))
        return losses

    def graph_capacity(self, batch: Batch, precision: str) -> Mapping[str, int] | None:
        """Steps of all models can be recorded: they have only columns of fixed sizes."""
        return {}

    def _adversarial_step(self, model: Any, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        """Yield the loss of the discriminator, then that of the generator against the improved discriminator."""
        from clew.recipes.fastsim.gan import adversarial_loss

        particles, voxels = self._turned_showers(batch)
        energy, weight = particles.energy, self.config.model.energy_weight
        generated = model.draw(particles).detach()
        true_loss = adversarial_loss(model.discriminator(voxels, particles), voxels, energy, true=1.0, weight=weight)
        judged = model.discriminator(generated, particles)
        yield "discriminator", true_loss + adversarial_loss(judged, generated, energy, true=0.0, weight=0.0)
        generated = model.draw(particles)
        judged = model.discriminator(generated, particles)
        yield "generator", adversarial_loss(judged, generated, energy, true=1.0, weight=weight)

    def _turned_showers(self, batch: Batch) -> tuple[Any, Tensor]:
        """Return particles and voxels to train on, turned at random if the calorimeter has the symmetry."""
        from clew.recipes.fastsim.networks import particles_of
        from clew.recipes.fastsim.symmetry import turn_showers

        particles, voxels = particles_of(batch), batch[VOXELS]
        return (
            (particles, voxels)
            if self.config.geometry.kind == "grid"
            else turn_showers(particles, voxels, self._shape())
        )

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """Return particles and generated voxels. Those of the GAN below the threshold of the read-out become 0."""
        voxels = np.asarray(outputs[VOXELS])
        if self.config.model.kind == "gan":
            voxels = np.where(voxels < materials.THRESHOLD, 0, voxels)
        particle = {name: samples.fixed(name) for name in (ENERGY, THETA, PHI)}
        units = {ENERGY: "MeV", VOXELS: "MeV", THETA: "rad", PHI: "rad"}
        return Table({**particle, VOXELS: voxels}, units=units)

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

    def _check_dataset(self, dataset: Dataset) -> None:
        geometry, (voxels,) = self.config.geometry.load(), dataset.schema[VOXELS].shape
        if voxels != geometry.voxels:
            raise DataError(
                f"the dataset has showers of {voxels} voxels, but {geometry.name} has {geometry.voxels}; "
                "set geometry.kind as it was for clew prepare"
            )

    def _shape(self) -> tuple[int, int, int]:
        geometry: Geometry = self.config.geometry.load()
        if geometry.shape is None:
            raise ConfigError(
                f"model.kind {self.config.model.kind} needs equal layers, and those of {geometry.name} differ"
            )
        return geometry.shape


def _showers(table: Table) -> Showers:
    return Showers(table.fixed(ENERGY), table.fixed(VOXELS))
