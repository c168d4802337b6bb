from __future__ import annotations

import pytest
import yaml

from clew import settings
from clew.core.config import Document
from clew.errors import RecipeError
from clew.server.dashboard import submit_form


@pytest.mark.parametrize("kind", submit_form.KINDS)
@pytest.mark.parametrize("recipe", submit_form.shipped())
def test_an_unchanged_form_is_the_recipe_and_nothing_else(recipe: str, kind: str) -> None:
    assert submit_form.make_form(recipe, kind).check() == {"recipe": recipe}


def test_the_document_has_the_changed_settings() -> None:
    result = submit_form.make_form("tracking", "train")
    result.fill(
        {"train.epochs": "7", "train.optimizer.lr": "1e-4", "train.compile": "true", "train.batch_size": "auto"}
    )
    assert result.check() == {
        "recipe": "tracking",
        "train": {"epochs": 7, "batch_size": "auto", "compile": True, "optimizer": {"lr": "1e-4"}},
    }
    loaded = settings.settings_from_document(Document(yaml.safe_load(result.yaml()), source="the form"))
    assert loaded.train.optimizer.lr == 1e-4 and loaded.train.epochs == 7


def test_messages_stand_at_their_fields() -> None:
    result = submit_form.make_form("tracking", "train")
    result.fill({"train.epochs": "0", "train.clip": "much", "train.optimizer.parameters": "{momentum: ["})
    assert result.check() is None
    assert list(submit_form.field_errors(result.fields().values())) == [
        "train.optimizer.parameters"
    ]  # YAML comes first
    result.fill({"train.optimizer.parameters": "{}"})
    assert result.check() is None
    assert set(submit_form.field_errors(result.fields().values())) == {"train.epochs", "train.clip"}


def test_incompatible_settings_are_reported_above_all_fields() -> None:
    result = submit_form.make_form("tracking", "train")
    result.fill({"train.asynchronous.masters": "2"})
    assert result.check() is None
    assert result.error.startswith("train: asynchronous")


def test_an_emptied_field_is_null_where_that_is_allowed() -> None:
    result = submit_form.make_form("tracking", "train")
    result.fill({"train.monitor_seconds": ""})
    assert result.check() == {"recipe": "tracking", "train": {"monitor_seconds": None}}


def test_an_earlier_document_fills_the_form() -> None:
    result = submit_form.make_form("tracking", "train")
    result.fill_from({"recipe": "tracking", "train": {"epochs": 3, "writers": ["mlflow"]}, "model": {"hidden": 16}})
    assert result.check() == {
        "recipe": "tracking",
        "train": {"epochs": 3, "writers": ["mlflow"]},
        "model": {"hidden": 16},
    }


def test_help_is_what_stands_under_the_setting() -> None:
    fields = submit_form.make_form("tracking", "train").fields()
    assert "gradient" in fields["train.clip"].help
    assert fields["train.strategy"].kind == "choice" and "downpour" in fields["train.strategy"].options


def test_files_are_not_loaded_as_recipes(tmp_path: object) -> None:
    with pytest.raises(RecipeError, match="no shipped recipe"):
        submit_form.make_form("/tmp/evil.py", "train")


def test_curves_share_plots_evenly_and_no_plot_has_more_than_can_be_distinguished() -> None:
    from types import SimpleNamespace

    from clew.server.dashboard.panels import training_panels

    share = SimpleNamespace(min=0.1, max=0.9)
    values = dict.fromkeys(("val/accuracy", *(f"val/track_{number}" for number in range(10))), share)
    result = {each["title"]: each["names"] for each in training_panels(values)}
    assert {title: len(names) for title, names in result.items()} == {
        "val/accuracy": 1,
        "Validation: track, 1 of 2": 5,
        "Validation: track, 2 of 2": 5,
    }
    assert sorted(name for names in result.values() for name in names) == sorted(values)
