"""A user's mistake is one line that says what and where."""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from clew import Dataset, Run, Table
from tests.cli import clew, done, script

GOOD = ["# event x y z station track", "0 80 1 5 0 0", "0 125 2 7 1 0", "1 80 1 5 0 -1"]


def complaint(*arguments: str | Path) -> str:
    """The error line of a command that was called wrongly."""
    outcome = clew(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("clew: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err + outcome.out
    return outcome.err.strip()


def refused(folder: Path, *rows: str) -> str:
    """The message about a text file of hits, without the path before its name and the range of bytes after it."""
    path = folder / "hits.txt"
    path.write_text("\n".join(rows))
    line = complaint("prepare", "tracking", "--input", path, "--output", folder / "dataset", "--workers", "1")
    assert [item.name for item in folder.iterdir()] == ["hits.txt"]
    return re.sub(r"hits\.txt \(bytes \d+-\d+\)", "hits.txt", line.replace(f"{folder}/", ""))


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    line = complaint("prepare", "tracking", "--input", tmp_path / "none*.txt", "--output", tmp_path / "dataset")
    assert line == f"clew: no input file matches '{tmp_path / 'none*.txt'}'"


def test_no_input_at_all_says_how_to_give_one() -> None:
    assert "no input given; name files with --input" in complaint("prepare", "tracking")


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path) == "clew: hits.txt: the file is empty"


def test_a_file_of_comments_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, "# nothing", "").startswith("clew: hits.txt: no ")


def test_a_short_row_is_named_with_its_line(tmp_path: Path) -> None:
    assert "hits.txt: line 3: 3 columns, expected 6" in refused(tmp_path, *GOOD[:2], "0 125 2", *GOOD[2:])


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    line = refused(tmp_path, *(row.rpartition(" ")[0] for row in GOOD))
    assert "hits.txt: " in line
    assert "5 columns, expected 6: event x y z station track" in line


def test_a_word_in_place_of_a_number_is_named_with_its_line(tmp_path: Path) -> None:
    assert "hits.txt: line 5: y is 'oops', not a number" in refused(tmp_path, *GOOD, "1 80 oops 5 0 -1")


def test_a_fraction_in_place_of_a_station_is_refused(tmp_path: Path) -> None:
    assert "station is 0.5, it must be a whole number" in refused(tmp_path, *GOOD, "1 80 1 5 0.5 -1")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_an_invalid_coordinate_is_named_with_its_event(tmp_path: Path, number: str) -> None:
    line = refused(tmp_path, *GOOD, f"2 80 1 {number} 0 -1")
    assert "hits.txt: column 'z' holds NaN or infinity, first in event 2" in line


@pytest.mark.parametrize("station", ["3", "-1"])
def test_a_station_out_of_the_detector_is_named(tmp_path: Path, station: str) -> None:
    line = refused(tmp_path, *GOOD, f"2 80 1 5 {station} -1")
    assert f"hits.txt: a hit has station {station}, the detector has 0 to 2" in line


@pytest.mark.parametrize("field", [0, 4, 5])
@pytest.mark.parametrize("number", ["inf", "nan", "1e300"])
def test_a_number_that_no_integer_holds_is_refused(tmp_path: Path, field: int, number: str) -> None:
    fields = GOOD[3].split()
    fields[field] = number
    assert "whole number" in refused(tmp_path, *GOOD, " ".join(fields))


def test_a_large_station_is_not_wrapped_around(tmp_path: Path) -> None:
    assert "hits.txt: a hit has station 65536" in refused(tmp_path, *GOOD, "2 80 1 5 65536 -1")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "hits.txt"
    path.write_bytes(bytes(range(256)))
    line = complaint("prepare", "tracking", "--input", path, "--output", tmp_path / "dataset", "--workers", "1")
    assert "hits.txt: line 1: " in line


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    line = complaint("prepare", "tracking", "--input", path, "--output", tmp_path / "dataset", "--workers", "1")
    assert "events.h5: not a readable HDF5 " in line


RECIPE = """
    import clew

    class Mine(clew.Recipe):
        def prepare(self, events): return events
        def model(self): return None
"""


def recipe(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "mine.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_recipe_that_is_not_python_is_named_with_its_line(tmp_path: Path) -> None:
    path = recipe(tmp_path, RECIPE.replace("(self, events):", "(self, events)"))
    assert complaint("config", "show", path).startswith(f"clew: {path}:5: SyntaxError: ")


def test_a_recipe_that_fails_to_load_is_named_with_its_line(tmp_path: Path) -> None:
    path = recipe(tmp_path, "import clew\n\nimport no_such_module\n")
    assert complaint("prepare", path) == f"clew: {path}:3: ModuleNotFoundError: No module named 'no_such_module'"


def test_a_recipe_without_its_methods_is_named(tmp_path: Path) -> None:
    path = recipe(tmp_path, RECIPE.replace("def model", "def modell"))
    assert "recipe Mine must define model()" in complaint("train", path)


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    assert "no recipe 'trackin'; did you mean 'tracking'?" in complaint("train", "trackin")


def test_a_missing_recipe_file_is_named(tmp_path: Path) -> None:
    assert complaint("train", tmp_path / "none.py") == f"clew: no recipe file {tmp_path / 'none.py'}"


def test_an_unknown_key_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("recipe: tracking\ntrain:\n  epochs: 3\n  batchsize: 3\n")
    assert (
        complaint("train", path) == f"clew: {path}:4: unknown key 'train.batchsize'; did you mean 'train.batch_size'?"
    )


def test_a_value_of_the_wrong_type_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("recipe: tracking\nmodel:\n  hidden: wide\n")
    assert complaint("config", "show", path).startswith(f"clew: {path}:3: model.hidden: expected a whole number")


def test_invalid_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("recipe: tracking\ntrain: [1, 2\nmodel: 3\n")
    assert complaint("train", path).startswith(f"clew: {path}:3: not valid YAML")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=3", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ("modle.hidden=3", "unknown key 'modle'; did you mean 'model'?"),
        ("train.epochs=0", "greater than or equal to 1 (given: 0)"),
        ("train.epochs=many", "expected a whole number"),
        ("train.optimizer.lr=nan", "train.optimizer.lr: "),
        ("train.strategy=magic", "train.strategy: input should be "),
        ("train.epochs", "expected KEY=VALUE"),
        ("train.epochs.x=1", "train.epochs is a single value, it has no key 'x'"),
    ],
)
def test_a_wrong_setting_is_quoted(setting: str, message: str) -> None:
    line = complaint("config", "show", "tracking", "--set", setting)
    assert line.startswith(f"clew: --set {setting}: ")
    assert message in line


def test_shares_that_do_not_add_up_are_reported() -> None:
    assert "add up to 0.5" in complaint("prepare", "tracking", "--set", "prepare.split={train: 0.5}")


def half_written(run: Run) -> None:
    run.config_file.unlink()


def damaged_checkpoint(run: Run) -> None:
    os.truncate(run.checkpoint("best"), 100)


def no_checkpoint(run: Run) -> None:
    shutil.rmtree(run.checkpoints)


def another_model(run: Run) -> None:
    data = yaml.safe_load(run.config_file.read_text())
    run.config_file.write_text(yaml.safe_dump({**data, "model": {**data["model"], "hidden": 8}}))


def damaged_record(run: Run) -> None:
    (run.records_folder / "evaluate.jsonl").write_text("{\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (half_written, "not a complete run folder (config.yaml or environment.json is missing)"),
        (damaged_checkpoint, "best.safetensors: damaged checkpoint"),
        (no_checkpoint, "best.safetensors: no such checkpoint; did the run finish its first epoch?"),
        (
            another_model,
            "best.safetensors: weights of another model: 'edge_hidden.bias' is (16,) in the file, (8,) in the model",
        ),
        (damaged_record, "evaluate.jsonl:1: damaged record"),
    ],
)
def test_a_damaged_run_is_reported(run_copy: Run, damage: Callable[[Run], None], message: str) -> None:
    damage(run_copy)
    assert message in complaint("evaluate", run_copy.path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (half_written, "not a complete run folder (config.yaml or environment.json is missing)"),
        (damaged_checkpoint, "best.safetensors: damaged checkpoint"),
        (no_checkpoint, "best.safetensors: no such checkpoint; did the run finish its first epoch?"),
        (
            another_model,
            "best.safetensors: weights of another model: 'edge_hidden.bias' is (16,) in the file, (8,) in the model",
        ),
    ],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_damaged_run_predicts_nothing(
    run_copy: Run, tmp_path: Path, damage: Callable[[Run], None], message: str, workers: str
) -> None:
    damage(run_copy)
    assert message in complaint("predict", run_copy.path, "--output", tmp_path / "out.h5", "--workers", workers)
    assert not list(tmp_path.glob("*out.h5*"))


@pytest.mark.parametrize("words", [("evaluate",), ("runs", "show"), ("runs", "report")])
def test_a_missing_run_says_where_to_look(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert "none: no such run; `clew runs list` shows all runs" in complaint(*words, tmp_path / "none")


def test_an_unknown_checkpoint_is_named(run: Run) -> None:
    assert "first.safetensors: no such checkpoint" in complaint("evaluate", run.path, "--weights", "first")


def test_a_missing_dataset_says_what_makes_one(tmp_path: Path) -> None:
    line = complaint("train", "tracking", "--dataset", tmp_path / "none", "--output", tmp_path / "run")
    assert line.startswith(f"clew: {tmp_path / 'none'}: no dataset there (no manifest.json)")
    assert "--dataset" in line and "`clew prepare` makes one" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_split_says_how_to_fill_it(dataset_copy: Dataset, tmp_path: Path, split: str) -> None:
    manifest = dataset_copy.path / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["splits"][split] = []
    manifest.write_text(json.dumps(facts))
    line = complaint("train", "tracking", "--dataset", dataset_copy.path, "--output", tmp_path / "run")
    assert f"the split '{split}' is empty; give it a share with prepare.split" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_an_empty_split_cannot_be_evaluated(run: Run, dataset_copy: Dataset, tmp_path: Path, verb: str) -> None:
    manifest = dataset_copy.path / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["splits"]["test"] = []
    manifest.write_text(json.dumps(facts))
    more = ("--output", tmp_path / "out.h5") if verb == "predict" else ()
    line = complaint(verb, run.path, "--dataset", dataset_copy.path, "--split", "test", *more)
    assert line.endswith("the split 'test' is empty")


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_a_dataset_without_a_column_of_the_model_is_reported(run: Run, tmp_path: Path, verb: str) -> None:
    Table({"event": np.arange(20), "x": np.ones(20)}).save(tmp_path / "events.h5")
    plain = tmp_path / "plain.py"
    plain.write_text(textwrap.dedent(RECIPE).replace("Mine", "Plain"))
    done("prepare", plain, "--input", tmp_path / "events.h5", "--output", tmp_path / "data", "--workers", "1")
    more = ("--output", tmp_path / "out.h5") if verb == "predict" else ()
    line = complaint(verb, run.path, "--dataset", tmp_path / "data", "--split", "train", *more)
    assert "no column 'node'" in line


def test_an_output_format_that_no_writer_has_is_reported(run: Run, tmp_path: Path) -> None:
    line = complaint("predict", run.path, "--output", tmp_path / "out.csv")
    ends = ".h5, .hdf5, .parquet, .root"
    assert line == f"clew: {tmp_path / 'out.csv'}: no writer supports files with this name; choose from {ends}"


def test_an_existing_file_is_not_overwritten_by_predict(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out.root").write_text("mine")
    line = complaint("predict", run.path, "--output", tmp_path / "out.root")
    assert line == f"clew: {tmp_path / 'out.root'} exists already; name another --output, or use --replace"
    assert (tmp_path / "out.root").read_text() == "mine"


def test_an_unknown_split_suggests_the_nearest(run: Run) -> None:
    assert "no split 'tets'; did you mean 'test'?" in complaint("evaluate", run.path, "--split", "tets")


def test_a_folder_taken_by_another_run_is_left_alone(run: Run, dataset: Dataset) -> None:
    before = sorted(run.path.rglob("*"))
    line = complaint("train", "tracking", "--dataset", dataset.path, "--output", run.path)
    assert line == f"clew: {run.path} exists already; name another folder with --output, or remove it"
    assert sorted(run.path.rglob("*")) == before


def test_a_folder_taken_by_another_dataset_is_left_alone(events: Path, dataset: Dataset) -> None:
    words = ("--output", dataset.path, "--set", "segments.z_cut=50", "--workers", "1")
    assert "holds another dataset; choose another --output, or use --replace" in complaint(
        "prepare", "tracking", "--input", events, *words
    )
    dataset.verify()


def test_a_shard_cut_short_is_named_by_training(dataset_copy: Dataset, tmp_path: Path) -> None:
    os.truncate(dataset_copy.path / "train-00000.h5", 5000)
    line = complaint("train", "tracking", "--dataset", dataset_copy.path, "--output", tmp_path / "run")
    assert "train-00000.h5: not a readable HDF5 table" in line
    assert Run.open(tmp_path / "run").state == "failed"


def test_an_unknown_option_or_command_is_refused() -> None:
    for words in (["train", "tracking", "--epoch", "3"], ["trian"], ["train"], ["runs", "shw", "x"]):
        outcome = clew(*words)
        assert outcome.code == 2
        assert "Traceback" not in outcome.err


def test_the_installed_script_says_the_same(tmp_path: Path) -> None:
    outcome = script("evaluate", "none", folder=tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "clew: none: no such run; `clew runs list` shows all runs\n"


def test_debug_shows_where_a_mistake_was_noticed(tmp_path: Path) -> None:
    outcome = script("--debug", "evaluate", "none", folder=tmp_path)
    assert outcome.code != 0
    assert "Traceback" in outcome.err
    assert "RunError: none: no such run" in outcome.err
