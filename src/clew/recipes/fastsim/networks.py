"""The networks that `model.kind` names, and how a new one is adapted to the showers it is trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from clew import Batch, Run
from clew.errors import ConfigError
from clew.recipes.fastsim.columns import ENERGY, PHI, THETA, VOXELS
from clew.recipes.fastsim.flow_networks import LayerFlow, ShapeFlow
from clew.recipes.fastsim.gan import Shape, ShowerGAN
from clew.recipes.fastsim.particles import ShowerParticles
from clew.recipes.fastsim.settings import ShowerModelConfig
from clew.recipes.fastsim.shower_flow import DistilledFlow, ShowerFlow

if TYPE_CHECKING:
    from clew import Dataset

FITTED_SHOWERS = 20_000
"""Number of training showers from which the tables of a model are measured."""


def build_network(config: ShowerModelConfig, shape: Shape) -> nn.Module:
    """Return a new network for showers of a shape (layers, angles, rings)."""
    if config.kind == "gan":
        return ShowerGAN(shape, config.latent, config.channels)
    layer_flow = LayerFlow(1 + 2 * shape[0], config.layer_width, config.layer_depth)
    shape_flow = _shape_flow(config, shape)
    if config.kind == "flow":
        return ShowerFlow(shape, layer_flow, shape_flow, steps=config.steps or 10)
    student = _shape_flow(config, shape, width=config.student_width, depth=config.student_depth)
    return DistilledFlow(shape, layer_flow, shape_flow, student, steps=config.steps or 1)


def particles_of(batch: Batch) -> ShowerParticles:
    """Return the particles of a batch."""
    return ShowerParticles.of(batch[ENERGY], batch[THETA], batch[PHI])


def fit_tables(model: Any, dataset: Dataset) -> None:
    """Measure the tables of a model from the first showers of the split `train`."""
    names, parts, showers = (ENERGY, THETA, PHI, VOXELS), list[list[Tensor]](), 0
    for shard in dataset.shards("train", columns=names):
        parts.append([torch.from_numpy(shard.fixed(name)) for name in names])
        showers += len(shard)
        if showers >= FITTED_SHOWERS:
            break
    energy, theta, phi, voxels = (torch.cat(each)[:FITTED_SHOWERS] for each in zip(*parts, strict=True))
    model.fit(ShowerParticles.of(energy, theta, phi), voxels)


def load_teacher(model: DistilledFlow, config: ShowerModelConfig) -> None:
    """Load the weights and tables of a trained flow, and start the student from them if it has the same size.

    Raises:
        ConfigError: The run has another kind of model, or networks of another size.
    """
    run = Run.open(config.teacher)
    settings = run.config().data.get("model", {})
    if settings.get("kind") != "flow":
        raise ConfigError(
            f"model.teacher {config.teacher}: a run of model.kind {settings.get('kind', 'gan')}, not flow"
        )
    path = run.checkpoint("best")
    with safe_open(path, "pt") as file:
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dictionary
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("student.")}
    for name in sorted(weights.keys() | state.keys()):
        if name not in weights or name not in state or weights[name].shape != state[name].shape:
            sizes = ", ".join(
                f"model.{key}={settings[key]}" for key in ("width", "depth", "layer_width", "layer_depth")
            )
            raise ConfigError(f"model.teacher {config.teacher}: other networks or geometry ({name}); its are {sizes}")
    model.load_state_dict(state, strict=False)
    if config.student_width is None and config.student_depth is None:
        model.student.load_state_dict(model.shape_flow.state_dict())


def _shape_flow(
    config: ShowerModelConfig, shape: Shape, *, width: int | None = None, depth: int | None = None
) -> ShapeFlow:
    patch = next(size for size in (3, 2, 1) if shape[0] % size == 0)
    return ShapeFlow(shape, width or config.width, depth or config.depth, config.heads, patch)
