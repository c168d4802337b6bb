"""The base class of the jet recipes: reading, generation, the loss, scores and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Recipe, Table
from clew.data.transforms import Compute, Reweight, Transform
from clew.metrics import Metric
from clew.recipes.jets import generator, inputs
from clew.recipes.jets import metrics as judging
from clew.recipes.jets.inputs import LABEL
from clew.recipes.jets.settings import JetTaggingConfig

if TYPE_CHECKING:
    from torch import Tensor

    from clew import Batch


class JetTaggingRecipe(Recipe):
    """Base of recipes that give a score for every class of jets. A subclass defines the inputs and the network."""

    Config = JetTaggingConfig
    events_per_file = generator.JETS_PER_FILE

    def inputs(self) -> Sequence[str]:
        """The expressions that samples are made from."""
        return ()

    def read(self, path: str) -> Iterable[Table]:
        """Read ROOT, Parquet, HDF5, npz or text (the columns that `data` and the inputs use), or files of images."""
        pieces: Iterable[Table] = inputs.read(path, self.config.data, self.transforms(), self.inputs())
        return pieces

    def transforms(self) -> Sequence[Transform]:
        # sections are named one by one: samples depend on these only, so a study can search the others
        return [
            *self.config.data.steps(),
            *self.config.data.label_steps(),
            *([self.config.reweight] if self.config.reweight else []),
            *self.config.transforms,
        ]

    def label_columns(self) -> Sequence[str]:
        """The columns that only classes, weights and plots use."""
        data, steps = self.config.data, self.transforms()
        label_steps = data.label_steps()
        others = [step for step in steps if step not in label_steps and not isinstance(step, Reweight)]
        input_columns = inputs.file_columns(others, self.inputs())
        if any(isinstance(step, Compute) and step.column in input_columns for step in label_steps):
            return ()
        return [name for name in inputs.file_columns(steps, [*self.inputs(), *data.keep]) if name not in input_columns]

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Write HDF5 files of jets from Pythia, clustered by fastjet.

        Raises:
            RecipeError: Pythia or fastjet is not installed.
        """
        yield from generator.write_jets(events, seed, folder, first=first, config=self.config.generator)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of every jet."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch[LABEL], reduction="none")

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`score_CLASS` for each class: its probability. The probabilities of a jet add up to 1."""
        scores = judging.softmax(outputs["output"])
        return Table({f"score_{name}": scores[:, place] for place, name in enumerate(self.config.data.classes)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        logits = np.asarray(outputs["output"], dtype=np.float64)
        return judging.make_metrics(samples, logits, self.config.data.classes, self.config.metrics)
