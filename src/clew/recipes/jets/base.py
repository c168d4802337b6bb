"""What the jet recipes share: reading, generating, the loss, scores and how good they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import Recipe, Table
from clew.data.transforms import Compute, Reweight, Transform
from clew.metrics import Metric
from clew.recipes.jets import inputs, shower
from clew.recipes.jets import metrics as judging
from clew.recipes.jets.inputs import LABEL
from clew.recipes.jets.settings import Tagging

if TYPE_CHECKING:
    from torch import Tensor

    from clew import Batch


class Tagger(Recipe):
    """Jets in, a score for every class out. A subclass says what the network sees of a jet."""

    Config = Tagging
    events_per_file = shower.JETS_A_FILE

    def inputs(self) -> Sequence[str]:
        """The expressions that samples are made from."""
        return ()

    def read(self, path: str) -> Iterable[Table]:
        """ROOT, Parquet, HDF5, npz or text: the columns that `data` and the inputs name; or files of images."""
        pieces: Iterable[Table] = inputs.read(path, self.config.data, self.transforms(), self.inputs())
        return pieces

    def transforms(self) -> Sequence[Transform]:
        # section by section: samples then depend on these alone, and a study may search the others
        return [
            *self.config.data.steps(),
            *self.config.data.truth(),
            *([self.config.reweight] if self.config.reweight else []),
            *self.config.transforms,
        ]

    def label_columns(self) -> Sequence[str]:
        """What classes, weights and plots are made of, unless something else needs it too."""
        data, steps = self.config.data, self.transforms()
        own = data.truth()
        others = [each for each in steps if each not in own and not isinstance(each, Reweight)]
        used = inputs.needed(others, self.inputs())
        if any(isinstance(each, Compute) and each.column in used for each in own):
            return ()
        return [name for name in inputs.needed(steps, [*self.inputs(), *data.keep]) if name not in used]

    def generate(self, events: int, seed: int, folder: Path, first: int = 0) -> Iterator[tuple[Path, int]]:
        """Jets from Pythia, clustered by fastjet, as HDF5.

        Raises:
            RecipeError: one of the two is not installed.
        """
        yield from shower.write(events, seed, folder, first=first, config=self.config.generator)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of every jet."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch[LABEL], reduction="none")

    def reconstruct(self, samples: Table, outputs: Mapping[str, Any]) -> Table:
        """`score_CLASS` of each class: the probability that the network gives it; they add up to 1."""
        scores = judging.softmax(outputs["output"])
        return Table({f"score_{name}": scores[:, place] for place, name in enumerate(self.config.data.classes)})

    def metrics(self, samples: Table, outputs: Mapping[str, Any], objects: Table) -> Mapping[str, Metric]:
        logits = np.asarray(outputs["output"], dtype=np.float64)
        return judging.tallies(samples, logits, self.config.data.classes, self.config.judging)
