"""A message blames the option that was written, and suggests the full key of a setting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import uproot

from tests.cli import script


def refused(folder: Path, *words: str) -> str:
    """What `clew train` says about wrong options."""
    outcome = script("train", "top_tagger.py", "--dataset", "dataset", *words, folder=folder)
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1
    assert not list((folder / "runs").glob("*"))
    return outcome.err


@pytest.mark.parametrize(
    ("words", "blamed"),
    [
        (("--workers", "0"), "--workers 0: "),
        (("--epochs", "0"), "--epochs 0: "),
        (("--strategy", "magic"), "--strategy magic: "),
        (("--set", "train.clip=1", "--workers", "0"), "--workers 0: "),
        (("--set", "train.workers=0"), "--set train.workers=0: "),
        (("--epochs", "2", "--features", "x"), "--features: "),
    ],
)
def test_the_option_that_is_wrong_is_blamed(tagger: Path, words: tuple[str, ...], blamed: str) -> None:
    message = refused(tagger, *words)
    assert message.startswith(f"clew: {blamed}")
    assert "dataset" not in message


def test_the_line_of_a_file_is_blamed_and_not_its_section(tagger: Path) -> None:
    (tagger / "my.yaml").write_text("recipe: top_tagger.py\ntrain:\n  epochs: 3\n  workers: 0\n")
    outcome = script("train", "my.yaml", "--dataset", "dataset", folder=tagger)
    assert outcome.code == 2
    assert outcome.err.startswith("clew: my.yaml:4: ") and "workers must be at least 1" in outcome.err


def test_resume_names_the_options_it_refuses(tagger: Path) -> None:
    outcome = script("train", "--resume", "runs/none", "--strategy", "easgd", folder=tagger)
    assert outcome.code == 2
    assert "--strategy" in outcome.err and "--output" not in outcome.err


@pytest.mark.parametrize(
    ("setting", "suggested"),
    [
        ("lr", "train.optimizer.lr"),
        ("train.lr", "train.optimizer.lr"),
        ("learning_rate", "train.optimizer.lr"),
        ("epochs", "train.epochs"),
        ("train.epoch", "train.epochs"),
        ("batchsize", "train.batch_size"),
        ("trian.epochs", "train"),
        ("hiden", "hidden"),
    ],
)
def test_a_suggestion_is_a_full_key(tagger: Path, setting: str, suggested: str) -> None:
    message = refused(tagger, "--set", f"{setting}=3")
    assert message.startswith(f"clew: --set {setting}=3: unknown key ")
    assert f"did you mean '{suggested}'?" in message


def test_of_many_keys_only_the_nearest_are_listed(tagger: Path) -> None:
    message = refused(tagger, "--set", "train.xyz=1")
    assert "train.optimizer" in message and " more" in message
    assert message.count("train.") < 9


def test_of_hundreds_of_branches_only_the_nearest_are_listed(tagger: Path) -> None:
    names = [f"HLT_Path{number}" for number in range(600)] + [f"Jet_variable{number}" for number in range(300)]
    with uproot.recreate(tagger / "nano.root") as file:
        file["Events"] = {name: np.zeros(4, np.float32) for name in names}
    words = ("--features", "QQQ", "--labels", "Jet_variable1", "--train", "nano.root")
    (tagger / "net.py").write_text("from torch import nn\n\n\ndef build():\n    return nn.Linear(1, 1)\n")
    outcome = script("train", "--model", "net.py:build", *words, folder=tagger)
    assert outcome.code == 2, outcome
    assert "no branch 'QQQ'" in outcome.err and "895 more" in outcome.err
    assert len(outcome.err) < 500


@pytest.mark.parametrize("word", ["newest", "0", "-1x"])
def test_a_job_is_named_by_its_number(word: str, tmp_path: Path) -> None:
    outcome = script("jobs", "--", word, folder=tmp_path)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert f"clew jobs {word}: a job has a number" in outcome.err
