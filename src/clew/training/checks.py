"""What is checked before a run's folder is created: the recipe and the dataset."""

from __future__ import annotations

from clew.data.dataset import Dataset, Manifest
from clew.errors import ConfigError, DataError, RecipeError
from clew.recipe import TYPED_IN, Recipe
from clew.recipe_errors import class_place
from clew.runs import Run
from clew.training.config import TrainConfig


def check_device(name: str, number: int) -> None:
    """Check that a device exists. torch is imported only if the device can be missing.

    Args:
        name: The setting `train.device`.
        number: Number of this process on its machine.

    Raises:
        ConfigError: There is no such device.
    """
    if name not in ("auto", "cpu"):
        from clew.training.device import find_device

        find_device(number, name)


def check_loadable(recipe: Recipe, workers: int) -> None:
    """Check that worker processes can load a recipe.

    Raises:
        RecipeError: They cannot.
    """
    if workers > 1 and not recipe.location and type(recipe).__module__ == "__main__":
        raise RecipeError(f"recipe {type(recipe).__name__} was typed in; {TYPED_IN}")


def check_own_optimizers(recipe: Recipe, config: TrainConfig) -> None:
    """Check that settings of the optimiser are not ignored: a LightningModule makes its own.

    Raises:
        ConfigError: The settings change the optimiser.
    """
    if not recipe.makes_optimizers or config.optimizer == TrainConfig().optimizer:
        return
    hint = "pass values to the module instead, as --set model.arguments.lr=0.01"
    raise ConfigError(f"train.optimizer: {recipe.makes_optimizers} makes the optimisers; {hint}")


def check_has_loss(recipe: Recipe) -> None:
    """Check that a recipe defines what is minimised.

    Raises:
        RecipeError: It defines neither `loss` nor `step`.
    """
    kind = type(recipe)
    if kind.step is Recipe.step and kind.loss is Recipe.loss and not recipe.has_estimator:
        name = kind.__name__
        raise RecipeError(
            f"{class_place(recipe)}: recipe {name} has no loss; define loss(outputs, batch), or step(model, batch)"
        )


def check_splits(data: Dataset) -> None:
    """Check that a dataset has samples to train on and to validate on.

    Raises:
        DataError: One of the splits is empty.
    """
    for split in ("train", "val"):
        if not data.splits.get(split):
            raise DataError(f"{data.path}: the split '{split}' is empty; give it a share with prepare.split")


def check_same_dataset(run: Run, data: Dataset) -> None:
    """Check that a dataset is the one that a run was trained on, wherever it is now.

    Raises:
        DataError: It is another dataset, or a split is empty.
    """
    check_splits(data)
    if run.dataset_file.is_file() and Manifest.load(run.dataset_file).key != data.manifest.key:
        raise DataError(f"{data.path}: not the dataset that {run.path} was trained on; a run is resumed with the same")
