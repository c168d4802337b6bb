"""One document that says everything: which recipe, and the settings of each verb."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field, create_model

from clew import storage
from clew.core.config import (
    Document,
    Section,
    read_document,
    to_data,
    validate,
    with_defaults,
    with_overrides,
    with_values,
)
from clew.data.prepare.config import PrepareConfig
from clew.errors import ConfigError
from clew.recipe import Recipe, find
from clew.runs.folder import Run, find_run_path
from clew.runs.run_trust import check_run_trust
from clew.training.config import TrainConfig
from clew.tuning.config import TuneConfig

_YAML = (".yaml", ".yml")
SECTIONS = ("prepare", "train", "tune")
"""Sections of clew, in addition to those of a recipe."""
_schemas: dict[type[Recipe], type[Section]] = {}
"""Those made before: each takes some ten milliseconds, and a study asks for it with every trial."""


@dataclass(frozen=True)
class Settings:
    """A recipe with its settings, and those of prepare, train and, where there is one, a study."""

    recipe: Recipe
    prepare: PrepareConfig
    train: TrainConfig
    tune: TuneConfig | None
    data: dict[str, Any]
    """All of it as plain YAML types; loading that again gives an equal spec."""

    def changed(self, values: Mapping[str, Any], source: str) -> Settings:
        """The same with other values at dotted keys, as `train.optimizer.lr`.

        Raises:
            ConfigError: they do not fit, one by one or together; the line begins with `source`.
        """
        return settings_from_document(with_values(Document(self.data, source=source), values, source))


def load_settings(name: str, settings: Sequence[str] = ()) -> Settings:
    """From a recipe's name, a recipe's file, a YAML file or a run's folder or name, with `a.b=c` settings on top.

    Raises:
        ConfigError, RecipeError: with the file and the line.
    """
    return settings_from_document(_document(name), settings)


def settings_from_document(document: Document, settings: Sequence[str] = ()) -> Settings:
    """Settings from a document that was read; it must contain `recipe`."""
    if not isinstance(document.data.get("recipe"), str):
        raise ConfigError(f"{document.source}: needs a line `recipe: NAME` (`clew config show tracking` shows one)")
    base = Path(document.source).parent if document.source.endswith(_YAML) else None
    recipe = find(document.data["recipe"], base=base)
    model = settings_schema(recipe)
    full = with_overrides(with_defaults(document, _defaults(recipe)), settings)
    explicit = with_overrides(with_defaults(document, recipe.defaults), settings).data
    checked = validate(model, Document({**full.data, "recipe": recipe.location}, full.places, full.source), explicit)
    sections = {name: getattr(checked, name) for name in recipe.Config.model_fields}
    values = cast(Any, checked)
    data = to_data(checked)
    data["prepare"]["input"] = _without_secrets(data["prepare"]["input"])
    ordered = {
        name: data[name] for name in ("recipe", *sections, *SECTIONS) if name != "tune" or data[name] is not None
    }
    return Settings(recipe(recipe.Config(**sections)), values.prepare, values.train, values.tune, ordered)


def _without_secrets(value: Any) -> Any:
    """Return the locations of inputs without passwords and signatures: these settings are saved and shown."""
    if isinstance(value, Mapping):
        return {name: _without_secrets(each) for name, each in value.items()}
    return storage.mask_secrets(value) if isinstance(value, str) else [_without_secrets(each) for each in value]


def settings_schema(recipe: type[Recipe]) -> type[Section]:
    """The schema of a recipe's document: clew's sections and the recipe's own.

    Raises:
        ConfigError: the recipe's settings use a name that is clew's.
    """
    if recipe in _schemas:
        return _schemas[recipe]
    taken = {"recipe", *SECTIONS} & recipe.Config.model_fields.keys()
    if taken:
        raise ConfigError(f"recipe {recipe.__name__}: its Config may not use clew's own name '{taken.pop()}'")
    _schemas[recipe] = create_model(
        f"{recipe.__name__}Settings",
        __base__=recipe.Config,
        recipe=(str, Field(description="Name or file of the recipe.")),
        prepare=(PrepareConfig, PrepareConfig()),
        train=(TrainConfig, TrainConfig()),
        tune=(TuneConfig | None, Field(None, description="A study, for `clew tune run`. null: none.")),
    )
    return _schemas[recipe]


def _defaults(recipe: type[Recipe]) -> dict[str, Any]:
    """Every setting at its default: clew's, then the recipe's own wishes."""
    plain = validate(settings_schema(recipe), Document({"recipe": ""}, {}, f"the defaults of {recipe.__name__}"))
    return with_defaults(Document(dict(recipe.defaults)), to_data(plain)).data


def _document(name: str) -> Document:
    path = Path(name)
    if path.suffix in _YAML:
        run = Run(path.parent)
        if path.name == run.config_file.name and run.environment_file.is_file():
            check_run_trust(run)  # the settings of a run by their file
        return _with_paths_of(read_document(path), path.parent)
    folder = find_run_path(path)
    if (folder / "config.yaml").is_file():
        check_run_trust(Run(folder))
        return read_document(folder / "config.yaml")
    return Document({"recipe": name}, {}, name)


_PATHS = {"prepare": ("input", "output", "cache"), "train": ("dataset", "start_from")}
"""Settings that are paths. Like `recipe` they belong to the folder of the YAML file that sets them."""


def _with_paths_of(document: Document, folder: Path) -> Document:
    """Return the document of a YAML file with its relative paths changed to be relative to the working directory."""
    if folder.absolute() == Path.cwd():
        return document
    data = dict(document.data)
    for section, names in _PATHS.items():
        values = data.get(section)
        if isinstance(values, dict):
            paths = {name: _at(values[name], folder) for name in names if values.get(name) is not None}
            data[section] = {**values, **paths}
    return Document(data, document.places, document.source)


def _at(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: _at(each, folder) for name, each in value.items()}
    if isinstance(value, list):
        return [_at(each, folder) for each in value]
    if not isinstance(value, str) or storage.is_url(value.removeprefix("@")):
        return value
    mark = "@" if value.startswith("@") else ""
    return f"{mark}{folder / Path(value.removeprefix('@')).expanduser()}"
