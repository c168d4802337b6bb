"""Turns gin files of Ariadne (preparation, training) into settings of the tracking recipes."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clew.errors import ConfigError

_RECIPES = {
    "GraphNet_Processor": "tracking",
    "GraphNet_v1": "tracking",
    "RDGraphNet_Processor": "tracking",
    "TrackNetProcessor": "tracknet",
    "TrackNetV2Processor": "tracknet",
    "TrackNETv2": "tracknet",
}
"""Recipes by Ariadne's processors and models."""
_SETTINGS = {
    "experiment.epochs": "train.epochs",
    "experiment.random_seed": "train.seed",
    "experiment.accumulate_grad_batches": "train.accumulate",
    "GraphDataLoader.batch_size": "train.batch_size",
    "TrackNetV2DataLoader.batch_size": "train.batch_size",
    "GraphNet_v1.hidden_dim": "model.hidden",
    "GraphNet_v1.n_iters": "model.iterations",
    "GraphNetWeightedBCE.real_weight": "model.positive_weight",
    "GraphNetWeightedBCE.fake_weight": "model.negative_weight",
    "TrackNETv2.conv_features": "model.hidden",
    "TrackNetLoss.alpha": "model.alpha",
}
"""Settings of clew by names of Ariadne."""
_TRANSFORMS = {
    "DropSpinningTracks": {"kind": "drop_spinning"},
    "DropTracksWithHoles": {"kind": "drop_holes"},
    "DropFakes": {"kind": "drop_fakes"},
    "DropShort": {"kind": "drop_short"},
}
_BY_RECIPE = {
    "ToCylindrical": "the recipe computes r, phi and z itself",
    "ConstraintsNormalize": "the recipe scales by the size of its detector (`detector`)",
    "MinMaxScale": "the recipe scales by the size of its detector (`detector`)",
    "DropEmpty": "events without hits are dropped when they are read",
}
_IMPLIED = (
    "experiment.model",
    "experiment.criterion",
    "experiment.metrics",
    "experiment.data_loader",
    "GraphNet_v1.input_dim",
    "TrackNETv2.input_features",
    "GraphNet_Processor.get_pd_line_graph",
    "GraphNet_Processor.get_supernodes_df",
    "GraphNet_Processor.apply_edge_restriction",
    "GraphNet_Processor.df_suffixes",
)
_ELSEWHERE = ("preprocess.", "parse.", "DropShort.", "ConstraintsNormalize.")
"""What the recipe does by itself, or other parts of this file use."""


@dataclass(frozen=True)
class ConvertedSettings:
    """Settings of a tracking recipe.

    Args:
        recipe: Its name.
        settings: The settings, nested, without the recipe.
        inputs: Files of events, if a file names them.
        differences: One line per key without a counterpart.
    """

    recipe: str
    settings: dict[str, Any]
    inputs: str
    differences: tuple[str, ...]


def convert(paths: Sequence[Path]) -> ConvertedSettings:
    """Convert gin files.

    Args:
        paths: A file of the preparation, of the training, or both.

    Raises:
        ConfigError: A file cannot be read or is not gin, or it describes a model that clew does not have.
    """
    values: dict[str, Any] = {}
    for path in paths:
        values |= read_gin(path)
    recipe = _recipe(values, paths)
    settings: dict[str, Any] = {}
    differences: list[str] = []
    for key, value in values.items():
        _put(key, value, settings, differences)
    settings |= _cuts(values) if recipe == "tracking" else {}
    transforms = _transforms(values, differences)
    if transforms is not None:
        settings["transforms"] = transforms
    inputs = str(values.get("parse.input_file_mask", ""))
    return ConvertedSettings(recipe, settings, inputs, tuple(differences))


def read_gin(path: Path) -> dict[str, Any]:
    """Return the values of a gin file by name. A reference such as `@Adam` is the text `@Adam`.

    Raises:
        ConfigError: The file cannot be read, or a line is not `name = value`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    values: dict[str, Any] = {}
    pending, first = "", 0
    for number, line in enumerate(lines, 1):
        text = _without_comment(line)
        if not pending and (not text.strip() or re.match(r"(import|include)\b", text)):
            continue
        pending, first = (f"{pending}\n{text}", first) if pending else (text, number)
        if _is_open(pending):
            continue
        name, equals, value = pending.partition("=")
        if not equals or not re.fullmatch(r"[\w./@]+", name.strip()):
            raise ConfigError(f"{path}:{first}: expected 'name = value', as in a gin file")
        values[_short(name.strip())] = _value(value.strip(), f"{path}:{first}")
        pending = ""
    if pending:
        raise ConfigError(f"{path}:{first}: a bracket is not closed")
    return values


def _without_comment(line: str) -> str:
    return re.sub(r"""("[^"]*"|'[^']*')|#.*""", lambda match: match.group(1) or "", line).rstrip()


def _is_open(text: str) -> bool:
    plain = re.sub(r"""("[^"]*"|'[^']*')""", "", text)
    return sum(plain.count(sign) for sign in "([{") > sum(plain.count(sign) for sign in ")]}")


def _short(name: str) -> str:
    """`package.module.Class.argument` as `Class.argument`."""
    return ".".join(name.split("/")[-1].split(".")[-2:])


def _value(text: str, place: str) -> Any:
    quoted = re.sub(r"@([\w./]+)(\(\))?", lambda match: repr(f"@{match.group(1).split('.')[-1]}"), text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes such as \\s in plain text, as Ariadne writes them
            return ast.literal_eval(quoted)
    except (ValueError, SyntaxError) as error:
        raise ConfigError(f"{place}: '{text.splitlines()[0][:60]}' is not a value of gin") from error


def _recipe(values: Mapping[str, Any], paths: Sequence[Path]) -> str:
    names = [values.get(key) for key in ("experiment.model", "preprocess.target_processor")]
    models = [str(name).removeprefix("@") for name in names if name]
    if not models:
        raise ConfigError(f"{paths[0]}: neither experiment.model nor preprocess.target_processor is set in it")
    recipes = {_RECIPES.get(name) for name in models}
    if None in recipes:
        raise ConfigError(
            f"clew has no counterpart of Ariadne's {', '.join(models)}; it has GraphNet_v1 and TrackNETv2"
        )
    if len(recipes) > 1:
        raise ConfigError(f"{' and '.join(models)} are different models; name files that belong together")
    return str(recipes.pop())


def _put(key: str, value: Any, settings: dict[str, Any], differences: list[str]) -> None:
    if key in _SETTINGS:
        section, _, name = _SETTINGS[key].partition(".")
        settings.setdefault(section, {})[name] = value
    elif key == "experiment.fp16_training":
        settings.setdefault("train", {})["precision"] = "fp16" if value else "float32"
    elif key == "experiment.optimizer":
        settings.setdefault("train", {}).setdefault("optimizer", {})["name"] = str(value).removeprefix("@").lower()
    elif key.endswith(".lr"):
        settings.setdefault("train", {}).setdefault("optimizer", {})["lr"] = value
    elif key == "TrackNetV2DataLoader.valid_size":
        settings.setdefault("prepare", {})["split"] = {"train": round(1 - value, 6), "val": value}
    elif not key.startswith(_ELSEWHERE) and key not in _IMPLIED and not key.endswith(".transforms"):
        differences.append(f"{key} = {value}: no counterpart")


def _cuts(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The size of the detector and the cuts on segments. Ariadne's cuts are in units of half the size."""
    settings: dict[str, dict[str, Any]] = {}
    limits = values.get("ConstraintsNormalize.constraints", {})
    if {"r", "phi", "z"} <= set(limits):
        sizes = {name: max(map(abs, limits[name])) for name in ("phi", "z")}
        settings["detector"] = {"r_range": list(limits["r"]), "phi_max": sizes["phi"], "z_max": sizes["z"]}
        cuts = values.get("GraphNet_Processor.get_pd_line_graph", {})
        for number, name in enumerate(("phi", "z")):
            if f"restrictions_{number}" in cuts:
                largest = max(map(abs, cuts[f"restrictions_{number}"]))
                settings.setdefault("segments", {})[f"{name}_cut"] = round(largest * sizes[name], 6)
    bend = values.get("GraphNet_Processor.apply_edge_restriction", {}).get("edge_restriction")
    if bend is not None:
        settings.setdefault("segments", {})["bend_cut"] = bend
    return settings


def _transforms(values: Mapping[str, Any], differences: list[str]) -> list[dict[str, Any]] | None:
    lists = [value for key, value in values.items() if key.endswith(".transforms")]
    if not lists:
        return None
    transforms = []
    for reference in lists[0]:
        name = str(reference).removeprefix("@")
        if name in _TRANSFORMS:
            stations = values.get("DropShort.num_stations", 3)
            transforms.append({**_TRANSFORMS[name], **({"stations": stations} if name == "DropShort" else {})})
        else:
            differences.append(f"{name}: {_BY_RECIPE.get(name, 'no counterpart')}")
    return transforms
