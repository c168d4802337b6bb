"""Every transform is a stage with its own key: a change computes that stage and the following ones, and no others."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew import Recipe, Table
from clew.data.prepare.api import explain
from clew.data.prepare.explanation import Explanation
from clew.data.prepare.stage_costs import is_worth_storing
from clew.data.transforms import Transform
from clew.errors import ConfigError
from clew.recipe import find
from tests.cli import done
from tests.data.prepare.conftest import fingerprint

CHAINED = Path(__file__).parent / "recipes" / "chained.py"
CHAIN = ["read", "shift", "cut", "centre", "power", "prepare"]


@dataclass
class Steps:
    """What a user does: prepare two files, change something, prepare again."""

    folder: Path
    recipe: Path = CHAINED
    outputs: int = 0

    def __post_init__(self) -> None:
        self.log = self.folder / "log"
        self.options: dict[str, Any] = {"input": [str(self.folder / "*.h5")], "cache": str(self.folder / "cache")}
        for number in range(2):
            Table({"pt": np.linspace(number, 8 + number, 30)}).save(self.folder / f"{number}.h5")

    def configured(self, **settings: Any) -> Recipe:
        kind = find(str(self.recipe))
        config: Any = kind.Config
        return kind(config(log=str(self.log), **settings))

    def prepare(self, keep: Any = "auto", workers: int = 1, **settings: Any) -> Counter[str]:
        """Prepare a new dataset; return the number of calls by name."""
        self.log.write_text("")
        self.outputs += 1
        options = {**self.options, "output": str(self.output), "keep": keep, "workers": workers}
        clew.prepare(self.configured(**settings), **options)
        return Counter(self.log.read_text().split())

    @property
    def output(self) -> Path:
        return self.folder / f"dataset-{self.outputs}"

    def explain(self, **settings: Any) -> Explanation:
        """Compare with the last preparation."""
        return explain(self.configured(**settings), **self.options, output=str(self.output))

    def entries(self, stage: str = "*") -> list[Path]:
        return sorted(self.folder.glob(f"cache/{stage}/*/*.table"))


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def _computed(explanation: Explanation) -> list[str]:
    assert list(explanation.stages) == CHAIN
    return [name for name, stage in explanation.stages.items() if stage.computed]


def test_a_change_of_the_last_transform_computes_it_and_prepare(steps: Steps) -> None:
    everything = steps.prepare()
    assert everything == dict.fromkeys(("shift", "cut", "fit", "centre", "power", "prepare"), 2)
    explanation = steps.explain(power=3.0)
    assert _computed(explanation) == ["power", "prepare"]
    assert explanation.stages["centre"].word == "hit"
    assert explanation.reasons["power"] == ["settings.power: 2.0 became 3.0"]
    assert explanation.reasons["prepare"] == ["the stage power has changed"]
    assert steps.prepare(power=3.0) == {"power": 2, "prepare": 2}
    assert not steps.prepare(power=2.0)  # the results of both settings are there


def test_a_change_of_the_first_transform_computes_all_of_them(steps: Steps) -> None:
    everything = steps.prepare()
    explanation = steps.explain(by=2.0)
    assert _computed(explanation)[-5:] == CHAIN[1:]
    assert explanation.reasons["shift"] == ["settings.by: 1.0 became 2.0"]
    assert explanation.reasons["centre"] == ["the stage shift has changed", "it is fitted again"]
    assert steps.prepare(by=2.0) == everything


def test_code_of_one_transform_does_not_count_for_the_others(steps: Steps, tmp_path: Path) -> None:
    steps.prepare()
    edited = tmp_path / "edited" / CHAINED.name
    edited.parent.mkdir()
    edited.write_text(CHAINED.read_text().replace('fixed("pt") ** self.power', 'fixed("pt") ** (self.power + 1)'))
    steps.recipe = edited
    assert _computed(steps.explain()) == ["power", "prepare"]
    assert steps.prepare() == {"power": 2, "prepare": 2}


@pytest.mark.parametrize("workers", [1, 2])
def test_any_mix_of_cached_and_missing_results_gives_the_same_bytes(steps: Steps, workers: int) -> None:
    steps.prepare(keep="always")
    expected = fingerprint(steps.output)
    entries = steps.entries()
    assert len(entries) == 2 * len(CHAIN)
    for place, missing in enumerate([entries[::2], entries[1::2], [*steps.entries("prepare"), *entries[:5]]]):
        for entry in missing:
            entry.unlink(missing_ok=True)
        steps.prepare(keep=["always", "never", "auto"][place], workers=workers)
        assert fingerprint(steps.output) == expected


@pytest.mark.parametrize("stage", ["transforms", "prepare"])
@pytest.mark.parametrize("damage", ["a flipped byte", "no checksum", "cut off"])
def test_a_damaged_result_is_noticed_and_computed_again(steps: Steps, stage: str, damage: str) -> None:
    steps.prepare(keep="always")
    expected, calls = fingerprint(steps.output), steps.prepare(keep="always")
    assert not calls
    for entry in {*steps.entries("prepare"), *steps.entries(stage)}:
        content = bytearray(entry.read_bytes())
        content[-40] ^= 1  # a value of the last column
        entry.write_bytes({"a flipped byte": content, "no checksum": content[:-12], "cut off": content[:99]}[damage])
    calls = steps.prepare(keep="always")
    assert fingerprint(steps.output) == expected
    transforms = dict.fromkeys(("shift", "cut", "centre", "power"), 2)
    assert calls == {"prepare": 2, **(transforms if stage == "transforms" else {})}


@pytest.mark.parametrize(
    ("keep", "stored"),
    [
        ("never", {}),
        ("always", {"read": 2, "transforms": 8, "prepare": 2}),
        ({"all": "never", "cut": "always"}, {"transforms": 2}),
        ({"transforms": "never", "prepare": "always", "read": "always"}, {"read": 2, "prepare": 2}),
        (["read", "power"], {"read": 2, "transforms": 2}),
    ],
)
def test_a_setting_forces_and_forbids_storing(steps: Steps, keep: Any, stored: dict[str, int]) -> None:
    steps.prepare(keep=keep)
    assert Counter(entry.parts[-3] for entry in steps.entries()) == stored


def test_a_forbidden_stage_is_computed_again_and_explained(steps: Steps) -> None:
    steps.prepare(keep={"centre": "never", "prepare": "never"})
    steps.options["keep"] = {"all": "never"}
    explanation = steps.explain()
    assert _computed(explanation) == ["prepare"]  # it starts from `power`, which was stored
    assert explanation.reasons["prepare"] == ["it is not stored: prepare.keep is never"]
    assert explanation.stages["centre"].word == "not needed"


def test_a_stage_that_does_not_exist_is_refused(steps: Steps) -> None:
    with pytest.raises(ConfigError, match=r"prepare.keep: no stage 'centr'; did you mean 'centre'\?"):
        steps.prepare(keep={"centr": "always"})


class Name(Transform):
    """Makes a text, or a number of the text."""

    kind: str = "name"
    remove: bool = False

    def __call__(self, events: Table) -> Table:
        if self.remove:
            return events.join({"size": np.char.str_len(events.fixed("name"))}).drop("name")
        return events.join({"name": np.array(["a" * int(pt) for pt in events.fixed("pt")])})


class Named(Recipe):
    def transforms(self) -> Sequence[Transform]:
        return (Name(), Name(remove=True))

    def prepare(self, events: Table) -> Table:
        return events


def test_an_intermediate_result_that_cannot_be_stored_is_computed_again(steps: Steps) -> None:
    dataset = clew.prepare(Named, **steps.options, output=str(steps.output), workers=1, keep="always")
    assert sum(dataset.splits.values()) == 60
    assert len(steps.entries("transforms")) == 2  # of the second transform


class Widen(Transform):
    """Quick, with a large result."""

    kind: str = "widen"

    def __call__(self, events: Table) -> Table:
        return events.join({"wide": np.zeros((len(events), 100_000))})


class Wide(Recipe):
    def transforms(self) -> Sequence[Transform]:
        return (Widen(), Widen())

    def prepare(self, events: Table) -> Table:
        return events.pick("pt")


def test_a_large_result_of_a_quick_stage_is_not_stored(steps: Steps) -> None:
    options = {**steps.options, "output": str(steps.output)}
    clew.prepare(Wide, **options, workers=1)
    assert not steps.entries("transforms")
    shutil.rmtree(steps.folder / "cache" / "prepare")
    explanation = explain(Wide, **options)
    assert list(explanation.stages) == ["read", "widen", "widen-2", "prepare"]
    [reason] = explanation.reasons["widen-2"]
    assert reason.startswith("it is not stored: ")
    assert " to write and read 24 MB takes " in reason


def test_a_result_is_stored_if_computing_it_takes_much_longer() -> None:
    assert is_worth_storing("auto", 1.0, 0.1)
    assert not is_worth_storing("auto", 0.2, 0.1)
    assert is_worth_storing("auto", 0.2, 0.1, needed_again=True)


def test_inserted_and_removed_transforms_are_explained(steps: Steps) -> None:
    steps.prepare()
    reasons = steps.explain(low=None).reasons
    assert reasons["centre"] == ["it comes after shift now, not after cut", "it is fitted again"]
    assert reasons["power"] == ["the stage centre has changed"]
    steps.prepare(low=None)
    assert not _computed(steps.explain())  # the results of the first preparation are still there
    for entry in [*steps.entries("transforms"), *steps.entries("prepare")]:
        entry.unlink()
    assert steps.explain().reasons["cut"] == ["it is new"]


def test_the_command_line_shows_the_chain(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE", str(steps.folder / "cache"))
    words = ["prepare", str(CHAINED), "--input", str(steps.folder / "*.h5"), "--output", str(steps.folder / "d")]
    words += ["--set", f"log={steps.log}", "--set", "prepare.keep={read: never}", "--workers", "1"]
    done(*words)
    lines = done(*words, "--set", "power=3", "--explain").splitlines()
    assert lines[0] == "dataset: another dataset"
    chain = lines[lines.index("read: not needed, 0 of 2 pieces cached") :]
    assert chain == [
        "read: not needed, 0 of 2 pieces cached",
        "shift: hit, 2 of 2 pieces cached",
        "cut: hit, 2 of 2 pieces cached",
        "centre: hit, 2 of 2 pieces cached",
        "power: miss, 0 of 2 pieces cached",
        "  settings.power: 2.0 became 3.0",
        "prepare: miss, 0 of 2 pieces cached",
        "  the stage power has changed",
    ]
