"""A classifier that tells two sources of showers apart: its AUC is 0.5 if they are equal, 1 if no shower is alike.

The network is that of the CaloChallenge (fully connected, hidden layers of 512, 60% of the showers to train, 20% to
choose the best epoch, 20% to measure). Inputs are standardised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from clew.metrics import Roc
from clew.recipes.fastsim.quality.config import QualityConfig

HIDDEN, HIDDEN_LAYERS = 512, 3
LEARNING_RATE, WEIGHT_DECAY = 5e-4, 1e-4
BATCH_SIZE = 256
LARGEST_INPUT = 10.0
"""Standardised inputs are clipped here: voxels that are almost never lit have a tiny standard deviation."""
SHARES = (0.6, 0.2)
"""Shares of the showers to train and to choose the best epoch. The others measure the AUC."""


@dataclass(frozen=True)
class ClassifierScore:
    """The AUC of classifiers that differ in their seeds.

    Args:
        aucs: AUC on the test showers, one for each seed.
        roc: The ROC curve of all of them together.
        test_showers: Number of test showers of each source and seed.
        epochs: Epochs that each classifier was trained.
    """

    aucs: tuple[float, ...]
    roc: Roc
    test_showers: int
    epochs: tuple[int, ...]

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.aucs))

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; NaN for one seed."""
        return float(np.std(self.aucs, ddof=1)) if len(self.aucs) > 1 else math.nan

    @property
    def statistical_error(self) -> float:
        """The statistical error of one AUC (Hanley and McNeil 1982)."""
        area, count = self.value, self.test_showers
        first, second = area / (2 - area), 2 * area**2 / (1 + area)
        variance = area * (1 - area) + (count - 1) * (first + second - 2 * area**2)
        return math.sqrt(max(variance, 0.0)) / count

    @property
    def error(self) -> float:
        """The spread over seeds or the statistical error of one test sample, whichever is larger."""
        return max(self.statistical_error, self.spread if len(self.aucs) > 1 else 0.0)


def classifier_score(
    true: NDArray[np.floating], generated: NDArray[np.floating], config: QualityConfig, *, device: str = ""
) -> ClassifierScore:
    """Train classifiers on two sources and measure their AUC.

    Args:
        true: Inputs (showers, inputs) of the first source.
        generated: Inputs of the second source. Of the longer source only the first showers are used.
        config: Number of seeds and epochs.
        device: Device of torch. Empty: a GPU if there is one.

    Example:
        >>> import numpy as np
        >>> inputs = np.random.default_rng(1).normal(size=(200, 4))
        >>> config = QualityConfig(seeds=2, epochs=3)
        >>> classifier_score(inputs, inputs + 5, config).value
        1.0
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    count = min(len(true), len(generated))
    samples = torch.stack([torch.as_tensor(np.asarray(each[:count], np.float32)) for each in (true, generated)])
    trials = [_train_one(samples.to(place), seed, config) for seed in range(config.seeds)]
    roc = trials[0].roc
    for trial in trials[1:]:
        roc = roc + trial.roc
    return ClassifierScore(
        tuple(each.roc.value for each in trials), roc, trials[0].test_showers, tuple(each.epochs for each in trials)
    )


class _Trial(NamedTuple):
    roc: Roc
    epochs: int
    test_showers: int


class _Split(NamedTuple):
    inputs: Tensor
    labels: Tensor
    """1 for true showers."""


def _train_one(samples: Tensor, seed: int, config: QualityConfig) -> _Trial:
    """Train on random 60% of `samples` (source, shower, input), and measure on 20%."""
    with torch.random.fork_rng(devices=[samples.device] if samples.is_cuda else []):
        torch.manual_seed(seed)
        train, choose, test = _split(samples)
        model = _network(samples.shape[2]).to(samples.device)
        epochs = _fit(model, train, choose, config)
    return _Trial(_roc(model, test), epochs, len(test.inputs) // 2)


def _split(samples: Tensor) -> tuple[_Split, _Split, _Split]:
    """Return standardised splits, in random order."""
    count = samples.shape[1]
    edges = [0, *(int(count * share) for share in np.cumsum(SHARES)), count]
    orders = [torch.randperm(count).to(samples.device) for _ in range(2)]
    parts: list[_Split] = []
    for first, last in pairwise(edges):
        chosen = torch.cat([source[order[first:last]] for source, order in zip(samples, orders, strict=True)])
        labels = torch.cat([torch.ones(last - first), torch.zeros(last - first)]).to(samples.device)
        parts.append(_Split(chosen, labels))
    mean, deviation = parts[0].inputs.mean(0), parts[0].inputs.std(0)
    scale = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    for part in parts:
        part.inputs.sub_(mean).div_(scale).clamp_(-LARGEST_INPUT, LARGEST_INPUT)
    return parts[0], parts[1], parts[2]


def _network(inputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for layer in range(HIDDEN_LAYERS):
        layers += [nn.Linear(HIDDEN if layer else inputs, HIDDEN), nn.LeakyReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN, 1), nn.Flatten(0))


def _fit(model: nn.Sequential, train: _Split, choose: _Split, config: QualityConfig) -> int:
    """Train until the validation AUC does not grow, restore the best weights, and return the number of epochs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best, best_epoch, weights = -1.0, 0, dict[str, Any]()
    for epoch in range(1, config.epochs + 1):
        for rows in torch.split(torch.randperm(len(train.inputs)).to(train.inputs.device), BATCH_SIZE):
            optimizer.zero_grad(set_to_none=True)
            loss = binary_cross_entropy_with_logits(model(train.inputs[rows]), train.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        auc = _roc(model, choose).value
        if auc > best:
            best, best_epoch = auc, epoch
            weights = {name: value.clone() for name, value in model.state_dict().items()}
        if best == 1 or epoch - best_epoch >= config.patience:
            break
    model.load_state_dict(weights)
    return epoch


def _roc(model: nn.Sequential, split: _Split) -> Roc:
    with torch.no_grad():
        scores = torch.cat([model(part) for part in torch.split(split.inputs, 4 * BATCH_SIZE)]).double().sigmoid()
    return Roc.of(scores.cpu().numpy(), split.labels.cpu().numpy() > 0)
