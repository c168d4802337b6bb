"""Every command does what its help says, and loads no more than it needs."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from pyarrow import parquet

from clew import Dataset, Run, __version__
from clew.cli.commands import Commands
from clew.cli.main import report_errors
from clew.runs.scores import Score
from tests.cli import SCRIPT, clew, commands, done, script

HEAVY = ("torch", "numpy", "h5py", "awkward", "sqlalchemy", "optuna", "fastapi")


@pytest.mark.parametrize("words", [(), *commands(), ("runs",), ("data",), ("config",)], ids=" ".join)
def test_help_succeeds(words: tuple[str, ...]) -> None:
    outcome = clew(*words, "--help")
    assert outcome.code == 0
    assert f"clew {' '.join(words)}".rstrip() in outcome.out.partition("Usage:")[2]
    assert outcome.err == ""


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_has_an_example_that_names_the_command(words: tuple[str, ...]) -> None:
    text = clew(*words, "--help").out
    assert "Example" in text
    assert f"clew {' '.join(words)}" in text.partition("Example")[2]


def test_a_group_alone_shows_its_commands() -> None:
    outcome = clew("runs")
    assert "report" in outcome.out + outcome.err
    assert "Traceback" not in outcome.err


def test_the_installed_script_prints_the_version() -> None:
    outcome = script("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"clew {__version__}\n", "")


@pytest.fixture(scope="module")
def prepared(events: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which commands prepared a small dataset, and trained and evaluated a run."""
    folder = tmp_path_factory.mktemp("journey")
    small = ("--set", "model.hidden=8", "--set", "train.batch_size=64")
    with contextlib.chdir(folder):
        assert "train " in done("prepare", "tracking", "--input", events, "--output", "data", "--workers", "1")
        assert "finished" in done(
            "train", "tracking", "--dataset", "data", "--epochs", "2", "--output", "runs/a", *small
        )
        assert "efficiency" in done("evaluate", "runs/a")
    return folder


@pytest.fixture
def journey(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder as the working folder of commands."""
    monkeypatch.chdir(prepared)
    return prepared


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_predictions_are_written_and_reported(journey: Path, tmp_path: Path, workers: str) -> None:
    output = tmp_path / "tracks.parquet"
    text = done("predict", "runs/a", "--output", output, "--with", "event,track", "--workers", workers)
    events = Dataset("data").splits["test"]
    assert text.startswith(f"{output}: {events} events (")
    assert parquet.read_schema(output).names == ["event", "track", "found_track", "score"]
    assert "--replace" in clew("predict", "runs/a", "--output", output).err


def test_any_number_of_workers_gives_the_same_evaluation(journey: Path) -> None:
    alone, shared = (done("evaluate", "runs/a", "--workers", n, "--batch-size", "16") for n in ("1", "2"))
    assert alone.splitlines()[1:] == shared.splitlines()[1:]


def test_what_commands_make_is_what_the_library_opens(journey: Path) -> None:
    Dataset(journey / "data").verify()
    run = Run.open(journey / "runs" / "a")
    assert run.state == "finished"
    assert list(run.evaluations()) == ["test"]
    assert run.report_file.is_file()


def test_runs_are_listed_with_their_state(journey: Path) -> None:
    head, line = done("runs", "list").splitlines()[:2]
    assert head.split()[:3] == ["run", "state", "recipe"]
    assert line.split()[:4] == ["a", "finished", "tracking", "2/2"]


def test_a_folder_without_runs_is_reported(journey: Path) -> None:
    assert "no runs in nowhere" in done("runs", "list", "nowhere")


def test_a_run_is_shown_with_its_numbers(journey: Path) -> None:
    text = done("runs", "show", "runs/a")
    entry = Run.open(journey / "runs" / "a").evaluations()["test"]["metrics"]["efficiency"]
    head, *rows = text[text.index("metric ") :].splitlines()
    assert head.split() == ["metric", "validation", "test"]
    line = next(row for row in rows if row.startswith("efficiency"))
    assert line.endswith(f"  {Score.read(entry).text}")
    assert "2 of 2" in text


def test_a_report_is_rewritten(journey: Path) -> None:
    report = journey / "runs" / "a" / "report.html"
    report.unlink()
    assert done("runs", "report", "runs/a") == "runs/a/report.html\n"
    assert report.is_file()


def test_a_run_is_evaluated_on_raw_events(journey: Path, events: Path) -> None:
    raw = sorted(events.iterdir())[1]
    text = done("evaluate", "runs/a", "--input", raw, "--name", "[raw] <events>", "--weights", "last")
    assert "[raw] <events>: 44 events" in text
    assert Run.open("runs/a").evaluations()["[raw] <events>"]["checkpoint"] == "last"


@pytest.mark.parametrize("name", ["..", ".", "../../data", "/tmp", "a/b"])
def test_an_evaluation_cannot_reach_out_of_its_folder(journey: Path, name: str) -> None:
    before = sorted(journey.rglob("*"))
    outcome = clew("evaluate", "runs/a", "--name", name)
    assert outcome.code == 2
    assert f"cannot be named '{name}'" in outcome.err
    assert sorted(journey.rglob("*")) == before


@pytest.mark.slow
def test_a_run_can_be_done_again_from_its_folder(journey: Path) -> None:
    done("train", "runs/a", "--output", "runs/b", "--epochs", "1")
    first, second = (Run.open(f"runs/{name}").config().data for name in "ab")
    assert second == {**first, "train": {**first["train"], "epochs": 1}}


@pytest.mark.slow
def test_without_an_output_the_next_free_name_is_taken(journey: Path) -> None:
    for _ in range(2):
        done("train", "runs/a", "--epochs", "1")
    assert {"tracking-001", "tracking-002"} <= {path.name for path in (journey / "runs").iterdir()}


def test_names_are_printed_as_they_are_and_on_one_line(journey: Path, events: Path) -> None:
    output = Path("[bold]" + "long" * 30) / "[/x] 2024"
    assert done("prepare", "tracking", "--input", events, "--output", output).startswith(f"{output}: train ")
    text = done("train", "runs/a", "--dataset", output, "--epochs", "1", "--output", "runs/[/c]")
    assert "run runs/[/c]\n" in text
    assert done("runs", "show", "runs/[/c]").startswith("c]  finished")


@pytest.mark.parametrize("name", ["2024", "null", "true", "2024-01-01", "it's", "a: b", "#1", "é\u2028😀"])
def test_a_folder_may_be_called_anything(journey: Path, events: Path, name: str) -> None:
    done("prepare", "tracking", "--input", events, "--output", name, "--workers", "1")
    assert Dataset(journey / name).splits["val"] > 0


def test_a_failed_run_is_shown_with_its_message(tmp_path: Path, dataset: Dataset) -> None:
    quick = ("--epochs", "1", "--set", "model.hidden=4", "--set", "train.best.metric='[/x]'")
    outcome = clew("train", "tracking", "--dataset", dataset.path, "--output", tmp_path / "run", *quick)
    assert outcome.code == 2
    shown = done("runs", "show", tmp_path / "run")
    assert "failed" in shown
    assert "'[/x]' is not among" in shown


def test_preparing_again_leaves_the_dataset_alone(journey: Path, events: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (journey / "data").iterdir()}
    done("prepare", "tracking", "--input", events, "--output", "data", "--set", "tracks.threshold=0.3")
    assert {path: path.stat().st_mtime_ns for path in (journey / "data").iterdir()} == before


def test_another_dataset_is_replaced_on_request(journey: Path, events: Path) -> None:
    for setting in ("prepare.seed=1", "prepare.seed=2"):
        done("prepare", "tracking", "--input", events, "--output", "other", "--set", setting, "--replace")
    assert Dataset("other").manifest.key != Dataset("data").manifest.key


def test_whole_data_is_verified_and_altered_data_is_named(dataset_copy: Dataset) -> None:
    assert "300 events" in done("data", "verify", dataset_copy.path)
    with (dataset_copy.path / "val-00000.h5").open("ab") as file:
        file.write(b"more")
    outcome = clew("data", "verify", dataset_copy.path)
    assert outcome.code == 2
    assert "val-00000.h5: shard was changed" in outcome.err


def test_a_dataset_is_shown_with_its_columns(dataset: Dataset) -> None:
    text = done("data", "inspect", dataset.path)
    for name, field in dataset.schema.items():
        assert f"\n{name} " in text
        assert field.unit in text


def test_events_are_generated_the_same_for_the_same_seed(tmp_path: Path, events: Path) -> None:
    done("data", "generate", "tracking", "--events", "300", "--seed", "1", "--output", tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {p.name: p.read_bytes() for p in events.iterdir()}


def test_the_settings_shown_can_be_fed_back(tmp_path: Path) -> None:
    shown = done("config", "show", "tracking", "--set", "train.epochs=4")
    path = tmp_path / "my.yaml"
    path.write_text(shown)
    again = done("config", "show", path)
    assert again == shown.replace(
        ": dataset\n", f": {tmp_path / 'dataset'}\n"
    )  # the base of paths is the file's folder
    assert yaml.safe_load(shown)["train"]["epochs"] == 4


def test_one_setting_can_be_set_several_times_deep(tmp_path: Path) -> None:
    words = ("--set", "train.optimizer.lr=0.25", "--set", "train.optimizer.name=sgd", "--set", "model.hidden=7")
    shown = yaml.safe_load(done("config", "show", "tracking", *words))
    assert shown["train"]["optimizer"]["lr"] == 0.25
    assert shown["train"]["optimizer"]["name"] == "sgd"
    assert shown["model"]["hidden"] == 7


def test_the_schema_is_json_and_knows_every_section() -> None:
    schema = json.loads(done("config", "schema", "tracking"))
    assert {"recipe", "prepare", "train", "segments", "model"} <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_the_installed_script_prepares_trains_evaluates_and_predicts(tmp_path: Path, events: Path) -> None:
    options = ("--epochs", "1", "--workers", "2", "--set", "model.hidden=4")
    for words in (
        ("prepare", "tracking", "--input", events, "--workers", "2"),
        ("train", "tracking", *options),
        ("evaluate", "runs/tracking-001"),
    ):
        outcome = script(*words, folder=tmp_path)
        assert (outcome.code, outcome.err) == (0, ""), outcome
    assert list(Run.open(tmp_path / "runs" / "tracking-001").evaluations()) == ["test"]


def test_an_interrupted_training_says_so(tmp_path: Path, dataset: Dataset) -> None:
    words = ["train", "tracking", "--dataset", str(dataset.path), "--epochs", "100000", "--output", "run"]
    # a test run started in the background ignores Ctrl-C, and so would its child processes
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        process = subprocess.Popen([SCRIPT, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        while not any(Run(tmp_path / "run").records(kind="step")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"interrupted (Ctrl-C) at step" in err and b"clew train --resume run" in err and b"Traceback" not in err
    assert Run.open(tmp_path / "run").state == "interrupted"


def lines(code: str, *arguments: str | Path) -> list[str]:
    """The output of a new interpreter."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_help_loads_nothing_heavy() -> None:
    code = """
        import json, sys
        from typer.testing import CliRunner
        from clew.cli.main import app
        for words in json.loads(sys.argv[1]):
            assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
        print(*sorted(set(json.loads(sys.argv[2])) & sys.modules.keys()))
    """
    assert lines(code, json.dumps([[], *commands()]), json.dumps(HEAVY)) == [""]


def test_an_error_of_the_system_without_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:  # bound, so no other process has the port; nobody listens
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(SystemExit) as ended:
            report_errors(partial(socket.create_connection, unused.getsockname()))
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("clew: ConnectionRefusedError: [Errno 111] Connection refused (")


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = """
        import sys
        from typer.testing import CliRunner
        from clew.cli.main import app
        assert CliRunner().invoke(app, ["--help"]).exit_code == 0
        print(*sorted({"pydantic", "numpy", "yaml", "clew.core.config"} & sys.modules.keys()))
    """
    assert lines(code) == [""]


@pytest.mark.parametrize("name", Commands.lazy)
def test_a_line_of_the_list_is_the_beginning_of_the_help(name: str) -> None:
    command = Commands.lazy[name].load(name)
    assert " ".join((command.help or "").partition("\n\n")[0].split()) == Commands.lazy[name].summary


@pytest.mark.parametrize("words", [["config", "show", "tracking"], ["config", "schema", "tracking"], ["runs", "list"]])
def test_looking_at_settings_and_runs_loads_no_torch(words: list[str]) -> None:
    code = """
        import sys
        from typer.testing import CliRunner
        from clew.cli.main import app
        assert CliRunner().invoke(app, sys.argv[1:]).exit_code == 0
        print("torch" in sys.modules)
    """
    assert lines(code, *words) == ["False"]


@pytest.mark.parametrize("workers", [1, 2])
def test_preparing_loads_no_torch_in_any_process(tmp_path: Path, events: Path, workers: int) -> None:
    (tmp_path / "telling.py").write_text(
        textwrap.dedent("""
            import os, sys
            import numpy as np
            from clew.recipes.tracking import Tracking

            class Telling(Tracking):
                def prepare(self, events):
                    here = np.full(len(events), os.getpid())
                    return super().prepare(events).join({"process": here, "torch": here * 0 + ("torch" in sys.modules)})
        """)
    )
    code = """
        import os, sys, clew
        recipe, events, output, workers = sys.argv[1:]
        prepared = clew.prepare(recipe, input=[events], output=output, workers=int(workers), cache=output + ".cache")
        tables = [prepared.read(split, columns=["process", "torch"]) for split in prepared.splits]
        print(any(table["torch"].any() for table in tables), "torch" in sys.modules)
        print(any((table["process"] == os.getpid()).any() for table in tables))
    """
    printed = lines(code, tmp_path / "telling.py", events, tmp_path / "data", str(workers))
    assert printed == ["False False", str(workers == 1)]
