"""Splits given by files: every event of a file goes where its split says."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import clew
from clew import Dataset, settings
from clew.data.prepare.api import explain
from clew.data.prepare.explanation import Explanation
from clew.errors import ConfigError, DataError
from tests.cli import clew as command
from tests.cli import done


@pytest.fixture
def files(events: Path, tmp_path: Path) -> dict[str, str]:
    """Two files of events with different names."""
    (tmp_path / "raw").mkdir()
    named_files = zip("ab", sorted(events.iterdir()), strict=True)
    return {name: str(shutil.copy(path, tmp_path / "raw" / f"{name}.txt")) for name, path in named_files}


def prepare(output: Path, inputs: Any, **options: Any) -> Dataset:
    return clew.prepare("tracking", input=inputs, output=str(output), workers=1, **options)


def numbers(dataset: Dataset, split: str) -> set[int]:
    return set(dataset.read(split).fixed("event").tolist())


def test_every_event_goes_where_its_file_goes(files: dict[str, str], tmp_path: Path) -> None:
    whole = prepare(tmp_path / "a", files["a"], split={"all": 1.0})
    dataset = prepare(tmp_path / "d", {"val": files["b"], "train": [files["a"]]})
    assert numbers(dataset, "train") == numbers(whole, "all")
    assert numbers(dataset, "train") | numbers(dataset, "val") == set(range(300))
    assert list(dataset.splits) == ["val", "train"]
    assert {item.name: item.split for item in dataset.manifest.inputs} == {"a.txt": "train", "b.txt": "val"}
    dataset.verify()


def test_the_assignment_is_part_of_the_key_and_not_of_the_stages(files: dict[str, str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": str(tmp_path / "cache")}
    inputs = {"train": files["a"], "val": files["b"]}
    one = prepare(tmp_path / "one", inputs, **options)
    swapped = {"train": files["b"], "val": files["a"]}
    explanation = explain("tracking", input=swapped, output=str(tmp_path / "one"), **options)
    assert explanation.dataset == "another dataset"
    assert {stage.computed for stage in explanation.stages.values()} == {0}
    assert set(explanation.reasons["dataset"]) == {
        f'split.{files["a"]}: "train" became "val"',
        f'split.{files["b"]}: "val" became "train"',
    }
    keys = {prepare(tmp_path / name, each, **options).manifest.key for name, each in {"x": swapped}.items()}
    keys.add(prepare(tmp_path / "y", list(files.values()), **options).manifest.key)
    assert len(keys | {one.manifest.key}) == 3


def test_names_and_order_do_not_matter_and_doing_it_again_does_nothing(files: dict[str, str], tmp_path: Path) -> None:
    one = prepare(tmp_path / "one", {"train": files["a"], "val": files["b"]})
    moved = shutil.move(files["a"], tmp_path / "moved.txt")
    again = {"val": [files["b"], files["b"]], "train": [str(moved)]}
    assert explain("tracking", input=again, output=str(tmp_path / "one")).dataset == "up to date"
    assert prepare(tmp_path / "one", again, seed=3).manifest == one.manifest


def test_a_plain_input_has_the_splits_it_always_had(files: dict[str, str], dataset: Dataset, tmp_path: Path) -> None:
    prepared = prepare(tmp_path / "d", list(files.values()), split={"train": 0.8, "val": 0.1, "test": 0.1})
    assert prepared.manifest.key == dataset.manifest.key
    assert prepare(tmp_path / "e", str(tmp_path / "raw")).manifest.key == dataset.manifest.key


def test_a_file_in_two_splits_is_named(files: dict[str, str], tmp_path: Path) -> None:
    inputs = {"train": str(tmp_path / "raw" / "*.txt"), "val": [files["b"]]}
    with pytest.raises(DataError) as caught:
        prepare(tmp_path / "d", inputs)
    assert str(caught.value) == f"{files['b']}: in two splits, 'train' and 'val'"


def test_a_copy_in_another_split_is_named(files: dict[str, str], tmp_path: Path) -> None:
    copy = str(shutil.copy(files["a"], tmp_path / "z.txt"))
    with pytest.raises(DataError, match=r"z\.txt: in two splits, 'val' and, as its copy .*a\.txt, 'train'"):
        prepare(tmp_path / "d", {"train": files["a"], "val": copy})


def test_a_pattern_of_a_split_that_matches_nothing_is_named(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no input file matches 'none"):
        prepare(tmp_path / "d", {"train": files["a"], "val": "none*.txt"})


@pytest.mark.parametrize(
    ("inputs", "options", "complaint"),
    [
        ({"train": "a"}, {"split": {"train": 1.0}}, "leave out split, or set to null"),
        ({"train": "a"}, {"split_by": "event"}, "leave out split_by"),
        ({"train": "a", "val": []}, {}, "every split needs files"),
        ({}, {}, "every split needs files"),
        ({"train": 5}, {}, "input: expected patterns of files"),
        (5, {}, "input: expected patterns of files"),
        ([["a"]], {}, "input: expected patterns of files"),
        ({"a/b": "a"}, {}, "is not accepted"),
        ("a", {"split": {"a/b": 1.0}}, "is not accepted"),
    ],
)
def test_wrong_inputs_are_one_line(tmp_path: Path, inputs: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(tmp_path / "d", inputs, **options)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_settings_with_splits_come_back_unchanged(tmp_path: Path) -> None:
    first = settings.load_settings("tracking", ["prepare.input={train: a.h5, val: [b.h5, c.h5]}"])
    assert first.prepare.input == {"train": ("a.h5",), "val": ("b.h5", "c.h5")}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(first.data))
    again = settings.load_settings(str(tmp_path / "again.yaml")).prepare
    train, *val = (str(tmp_path / name) for name in ("a.h5", "b.h5", "c.h5"))  # paths begin at the folder of the file
    assert again.input == {"train": (train,), "val": tuple(val)}


def test_a_yaml_may_give_fewer_splits_than_the_default(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("recipe: tracking\nprepare:\n  split: {train: 0.5, val: 0.5}\n")
    assert settings.load_settings(str(path)).prepare.shares == {"train": 0.5, "val": 0.5}


def test_given_splits_take_the_place_of_those_of_the_config(files: dict[str, str], tmp_path: Path) -> None:
    config = settings.load_settings("tracking", ["prepare.input={train: a, test: b}"]).prepare
    dataset = clew.prepare("tracking", config, input={"val": files["a"]}, output=str(tmp_path / "d"), workers=1)
    assert list(dataset.splits) == ["val"]


def test_the_command_line_takes_split_and_pattern(files: dict[str, str], tmp_path: Path) -> None:
    words = ("--input", "train=raw/a*.txt", "--input", f"val={files['b']}", "--output", "data", "--workers", "1")
    with contextlib.chdir(tmp_path):
        assert done("prepare", "tracking", *words).startswith("data: train ")
        assert "dataset: up to date" in done("prepare", "tracking", *words, "--explain")
        output = done("data", "inspect", "data")
        assert "a.txt (train)" in output
        assert "b.txt (val)" in output
        done("data", "inspect", "data", "--html", "page.html")
        assert "<td>a.txt</td><td>train</td>" in Path("page.html").read_text()
        done("data", "verify", "data")
        assert json.loads(Path("data/manifest.json").read_text())["splits"].keys() == {"train", "val"}


def test_a_path_with_an_equals_sign_stays_a_path(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run=1").mkdir()
    shutil.copy(files["a"], tmp_path / "run=1")
    with contextlib.chdir(tmp_path):
        output = done("prepare", "tracking", "--input", "./run=1/a.txt", "--output", "data", "--workers", "1")
    assert "test " in output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train=a.txt", "b.txt"], "--input b.txt: has no split, other inputs have one; write SPLIT=b.txt"),
        (["train=none.txt"], "no input file matches 'none.txt'"),
    ],
)
def test_mixed_or_missing_inputs_are_one_line(words: list[str], complaint: str) -> None:
    outcome = command("prepare", "tracking", *(part for word in words for part in ("--input", word)))
    assert (outcome.code, outcome.err) == (2, f"clew: {complaint}\n")


def test_splits_by_share_and_by_file_do_not_mix_on_the_command_line() -> None:
    outcome = command("prepare", "tracking", "--input", "train=a.txt", "--set", "prepare.split_by=file")
    assert outcome.code == 2
    assert "prepare: input assigns files to splits; leave out split_by, or set to null" in outcome.err


def test_explain_of_something_new_is_plain(files: dict[str, str], tmp_path: Path) -> None:
    explanation = explain("tracking", input={"train": files["a"]}, output=str(tmp_path / "d"))
    assert isinstance(explanation, Explanation)
    assert explanation.dataset == "missing"
