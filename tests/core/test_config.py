"""Settings: their sources, and the one error line for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.core.config import Document, Section, read_document, to_data, to_yaml, validate, with_defaults, with_overrides
from clew.data.transforms import AnyTransform, Cylindrical, LengthBuckets, MinMax, StationLimits
from clew.errors import ConfigError, UserError, nearest


class Optimizer(Section):
    kind: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    decay: float | None = None


class Train(Section):
    epochs: int = 1
    amp: bool = False
    widths: list[int] = [8]
    workers: int | Literal["auto"] = "auto"
    optimizer: Optimizer = Optimizer()


class Settings(Section):
    name: str
    train: Train = Train()
    transforms: tuple[AnyTransform, ...] = ()
    heads: dict[str, Optimizer] = {}
    stages: list[Optimizer] | None = None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config")


def load(folder: Path, text: str, *sets: str) -> Settings:
    path = folder / "run.yaml"
    path.write_text(text)
    return validate(Settings, with_overrides(read_document(path), sets))


def complaint(folder: Path, text: str, *sets: str) -> str:
    """The error line, with the path of the file shortened to `run.yaml`."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *sets)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    return line.replace(str(folder / "run.yaml"), "run.yaml")


def problem(check: Callable[[], object]) -> str:
    """The ConfigError of a check, or nothing."""
    try:
        check()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\ntrian: {}", "run.yaml:2: unknown key 'trian'; did you mean 'train'?"),
        ("name: a\ntrain:\n  epoch: 3", "run.yaml:3: unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        (
            "name: a\ntrain:\n  optimizer:\n    lr: 1\n    decai: 2",
            "run.yaml:5: unknown key 'train.optimizer.decai'; did you mean 'train.optimizer.decay'?",
        ),
        (
            "name: a\ntrain: {optimizer: {q: 1}}",
            "run.yaml:2: unknown key 'train.optimizer.q'; choose from train.optimizer.decay, train.optimizer.kind, "
            "train.optimizer.lr",
        ),
        ("name: a\nheads:\n  b:\n    lrr: 1", "run.yaml:4: unknown key 'heads.b.lrr'; did you mean 'heads.b.lr'?"),
        (
            "name: a\nstages:\n- lr: 1\n- kin: 1",
            "run.yaml:4: unknown key 'stages.1.kin'; did you mean 'stages.1.kind'?",
        ),
        (
            "name: a\ntransforms:\n- kind: cylindrical\n- kind: min_max\n  columns: [x]\n  hig: {x: 1}",
            "run.yaml:6: unknown key 'transforms.1.hig'; did you mean 'transforms.1.high'?",
        ),
        (
            "name: a\ntransforms:\n- kind: drop_holes\n  colums: [x]",
            "run.yaml:4: unknown key 'transforms.0.colums'; choose from transforms.0.dropped, transforms.0.kind",
        ),
    ],
)
def test_an_unknown_key_is_placed_and_the_nearest_suggested(folder: Path, text: str, expected: str) -> None:
    assert complaint(folder, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: {}", "run.yaml: name: is required"),
        ("", "run.yaml: name: is required"),
        ("# nothing yet\n", "run.yaml: name: is required"),
        ("name: a\ntransforms:\n- kind: min_max", "run.yaml:3: transforms.0.columns: is required"),
        ("name: 3", "run.yaml:1: name: input should be a valid string (given: 3)"),
        ("name: a\ntrain: 5", "run.yaml:2: train: input should be a valid dictionary"),
        (
            "name: a\ntrain:\n  epochs: many",
            "run.yaml:3: train.epochs: expected a whole number (given: 'many')",
        ),
        ("name: a\ntrain:\n  optimizer:\n    kind: adamm", "run.yaml:4: train.optimizer.kind: input should be 'adam'"),
        ("name: a\ntrain:\n  widths:\n  - 8\n  - wide", "run.yaml:5: train.widths.1: expected a whole number"),
        ("name: a\ntransforms:\n- kind: min_mx", "run.yaml:3: transforms.0: input tag 'min_mx'"),
        ("name: a\ntransforms:\n- columns: [x]", "run.yaml:3: transforms.0: unable to extract tag"),
        (
            "name: a\ntransforms:\n- kind: buckets\n  edges: [3, 2]",
            "run.yaml:4: transforms.0.edges: bucket edges must rise",
        ),
        (
            "name: a\ntransforms:\n- kind: station_limits\n  limits:\n    0: {z: [0, 1]}\n    1: {z: [0, far]}",
            "run.yaml:6: transforms.0.limits.1.z.1: expected a number",
        ),
        ("name: a\n3: 4", "run.yaml:2: 3: keys should be strings"),
        (
            "name: a\ntransforms:\n- kind: station_limits\n  limits:\n    first: {}",
            "run.yaml:5: transforms.0.limits.first: expected a whole number",
        ),
        (
            "name: a\ntrain:\n  optimizer:\n    lr: .inf",
            "run.yaml:4: train.optimizer.lr: input should be a finite number",
        ),
    ],
)
def test_a_wrong_or_missing_value_is_placed(folder: Path, text: str, expected: str) -> None:
    assert complaint(folder, text).startswith(expected)


def test_a_value_that_fits_no_choice_of_a_type_is_named_by_its_own_key(folder: Path) -> None:
    line = complaint(folder, "name: a\ntrain:\n  workers: few")
    assert line.startswith("run.yaml:3: train.workers: expected a whole number")
    assert "run.yaml:3: train.workers: input should be 'auto' (given: 'few')" in line


def test_several_mistakes_are_reported_in_one_line(folder: Path) -> None:
    line = complaint(folder, "trian: 1\ntrain:\n  epochs: x")
    assert "name: is required" in line
    assert "run.yaml:3: train.epochs:" in line
    assert "run.yaml:1: unknown key 'trian'" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\ntrain: [1, 2\n", "run.yaml:3: not valid YAML"),
        ("name: a\n\tx: 1", "run.yaml:2: not valid YAML"),
        ("name: a\nname: b: c", "run.yaml:2: not valid YAML"),
        ("name: a\n---\nname: b", "run.yaml:2: not valid YAML"),
        ("name: !!python/name:os.system ''", "run.yaml:1: not valid YAML"),
        ("name: a\x01", "run.yaml: not valid YAML"),
        ("name: 2024-13-01", "run.yaml: not valid YAML"),
        ("- 1\n- 2", "run.yaml: expected settings as 'key: value' lines, found a list"),
        ("just text", "run.yaml: expected settings as 'key: value' lines, found a str"),
    ],
)
def test_a_file_that_is_not_settings_is_refused(folder: Path, text: str, expected: str) -> None:
    assert complaint(folder, text).startswith(expected)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.yaml: No such file"):
        read_document(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        read_document(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match=r"latin\.yaml: not valid YAML"):
        read_document(tmp_path / "latin.yaml")


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab:-?[]{},&*!|>'\"%@#=<._0123 \n\t\x01\u2028é", max_size=25))
def test_any_text_is_settings_or_one_line(folder: Path, text: str) -> None:
    path = folder / "any.yaml"
    path.write_text(text, encoding="utf-8")
    assert len(problem(lambda: validate(Settings, read_document(path))).splitlines()) <= 1


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.dictionaries(st.text(), inner)))
def test_any_data_under_any_key_is_reported_in_one_line(value: Any) -> None:
    for data in ({"name": value, "é\nx": value}, {"name": "a", "train": value, "heads": {"a\r\nb": value}}):
        assert len(problem(partial(validate, Settings, Document(data))).splitlines()) <= 1


@pytest.mark.parametrize(
    ("setting", "path", "expected"),
    [
        ("train.optimizer.lr=1e-4", ("train", "optimizer", "lr"), 1e-4),
        ("train.optimizer.lr=3", ("train", "optimizer", "lr"), 3.0),
        ("train.optimizer.decay=null", ("train", "optimizer", "decay"), None),
        ("train.amp=true", ("train", "amp"), True),
        ("train.widths=[4, 5]", ("train", "widths"), [4, 5]),
        ("train.widths=[]", ("train", "widths"), []),
        ("train.workers=auto", ("train", "workers"), "auto"),
        ("train.workers=4", ("train", "workers"), 4),
        ("name=a=b", ("name",), "a=b"),
        (" name =x", ("name",), "x"),
        ("train={epochs: 9}", ("train", "epochs"), 9),
    ],
)
def test_a_setting_is_typed_by_the_schema(folder: Path, setting: str, path: tuple[str, ...], expected: Any) -> None:
    value: Any = load(folder, "name: a\ntrain:\n  optimizer: {lr: 5, decay: 1}", setting)
    for part in path:
        value = getattr(value, part)
    assert value == expected
    assert type(value) is type(expected)


def test_settings_reach_into_lists_and_mappings(folder: Path) -> None:
    text = (
        "name: a\nstages:\n- lr: 1\n- lr: 2\nheads: {b: {lr: 1, decay: 5}}\n"
        "transforms:\n- kind: station_limits\n  limits: {0: {r: [0, 1], z: [0, 1]}}\n"
    )
    settings = load(folder, text, "stages.1.lr=7", "heads.b.lr=8", "heads.c.lr=9", "transforms.0.limits.0.z=[2, 3]")
    assert settings.stages == [Optimizer(lr=1), Optimizer(lr=7)]
    assert settings.heads == {"b": Optimizer(lr=8, decay=5), "c": Optimizer(lr=9)}
    assert settings.transforms == (StationLimits(limits={0: {"r": (0, 1), "z": (2, 3)}}),)


def test_the_last_setting_wins(folder: Path) -> None:
    assert load(folder, "name: a", "train.epochs=2", "train.epochs=3").train.epochs == 3


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("epochs", "--set epochs: expected KEY=VALUE, for example --set train.epochs=5"),
        ("=5", "--set =5: expected KEY=VALUE"),
        ("train.epochs=[1", "--set train.epochs=[1: the value is not valid YAML"),
        ("name=2024-13-01", "--set name=2024-13-01: the value is not valid YAML"),
        ("train.epocs=5", "--set train.epocs=5: unknown key 'train.epocs'; did you mean 'train.epochs'?"),
        ("tain.epochs=5", "--set tain.epochs=5: unknown key 'tain'; did you mean 'train'?"),
        ("train.epochs=x", "--set train.epochs=x: train.epochs: expected a whole number"),
        ("name.first=x", "--set name.first=x: name is a single value, it has no key 'first'"),
        ("stages.2.lr=1", "--set stages.2.lr=1: stages has 2 entries, counted from 0"),
        ("stages.last.lr=1", "--set stages.last.lr=1: stages has 2 entries, counted from 0"),
        ("stages.1.lr=x", "--set stages.1.lr=x: stages.1.lr: expected a number"),
        ("stages.1.lrr=1", "--set stages.1.lrr=1: unknown key 'stages.1.lrr'; did you mean 'stages.1.lr'?"),
        ("train={epochs: x}", "--set train={epochs: x}: train.epochs: expected a whole number"),
    ],
)
def test_a_wrong_setting_is_quoted_as_typed(folder: Path, setting: str, expected: str) -> None:
    text = "name: a\ntrain:\n  epochs: 3\nstages:\n- lr: 1\n- lr: 2"
    assert complaint(folder, text, setting).startswith(expected)


def test_override_leaves_the_document_it_started_from(folder: Path) -> None:
    document = Document({"stages": [{"lr": 1}], "train": {"epochs": 1}})
    with_overrides(document, ["stages.0.lr=2", "train.epochs=2"])
    assert document.data == {"stages": [{"lr": 1}], "train": {"epochs": 1}}


def test_defaults_lie_beneath_mappings_and_give_way_to_everything_else() -> None:
    defaults = {"name": "below", "train": {"epochs": 5, "widths": [1, 2]}, "heads": {"a": {"lr": 1}}}
    above = Document({"train": {"widths": [3]}, "heads": {"b": {"lr": 2}}, "transforms": [{"kind": "cylindrical"}]})
    settings = validate(Settings, with_defaults(above, defaults))
    assert (settings.name, settings.train.epochs, settings.train.widths) == ("below", 5, [3])
    assert settings.heads == {"a": Optimizer(lr=1), "b": Optimizer(lr=2)}
    assert settings.transforms == (Cylindrical(),)
    assert defaults["train"] == {"epochs": 5, "widths": [1, 2]}


TEXT = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]))  # YAML cannot hold other characters
TRANSFORMS = st.lists(
    st.builds(MinMax, columns=st.just(("x",)), low=st.dictionaries(TEXT, st.floats(-1e9, 1e9), max_size=2))
    | st.builds(Cylindrical, keep=st.booleans())
    | st.builds(
        LengthBuckets, edges=st.lists(st.integers(0, 99), min_size=1, unique=True).map(lambda e: tuple(sorted(e)))
    )
    | st.just(StationLimits(limits={3: {"z": (-1.5, 1e-5)}})),
    max_size=3,
).map(tuple)
OPTIMIZERS = st.builds(Optimizer, kind=st.sampled_from(["adam", "sgd"]), lr=st.floats(1e-9, 1e9))
TRAINS = st.builds(Train, epochs=st.integers(), amp=st.booleans(), optimizer=OPTIMIZERS, widths=st.lists(st.integers()))


@settings(max_examples=60, deadline=None)
@given(st.builds(Settings, name=TEXT, train=TRAINS, transforms=TRANSFORMS, stages=st.none() | st.lists(OPTIMIZERS)))
def test_settings_fed_back_in_are_equal(settings: Settings) -> None:
    data = to_data(settings)
    assert validate(Settings, Document(data)) == settings
    assert validate(Settings, Document(yaml.safe_load(to_yaml(data)))) == settings


def test_yaml_keeps_the_declared_order() -> None:
    text = to_yaml(to_data(Settings(name="größe")))
    assert [line.split(":")[0] for line in text.splitlines() if line[0] != " "] == list(Settings.model_fields)
    assert "größe" in text


def test_a_section_is_fixed_once_built() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Train().epochs = 2  # type: ignore[misc]


def test_place_falls_back_to_the_nearest_key_above() -> None:
    document = Document({}, {("train",): "run.yaml:3"}, "run.yaml")
    assert document.place(("train", "epochs")) == "run.yaml:3"
    assert document.place(("name",)) == "run.yaml"


def test_nearest_suggests_or_lists_or_says_nothing() -> None:
    assert nearest("trian", ["train", "model"]) == "; did you mean 'train'?"
    assert nearest("zzz", ["train", "model"]) == "; choose from model, train"
    assert nearest("zzz", []) == ""


def test_a_message_of_several_lines_becomes_one() -> None:
    assert str(UserError("first\n  second\r\nthird")) == "first second third"


REPEATED = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
"""A few lines that stand for a thousand million values."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 100 deep"),
        ("- " * 100_000, "nested more than 100 deep"),
        ("a: &a [*a]", "not valid YAML"),
        ('a: "x\\0y"', "a zero byte"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)),
            "values",
        ),
    ],
    ids=["brackets", "lists", "itself", "zero", "repeated"],
)
def test_settings_that_would_end_the_process_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_document(tmp_path / "settings.yaml")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 2\na: 3\n", "3: 'a' is set twice, first in line 1"),
        ("train:\n  epochs: 1\n  epochs: 2\n", "3: 'epochs' is set twice, first in line 2"),
        ("transforms:\n- kind: select\n  where: x\n  where: y\n", "4: 'where' is set twice, first in line 3"),
        ("grid: [[{x: 1}, {x: 2, x: 3}]]\n", "1: 'x' is set twice, first in line 1"),
    ],
)
def test_a_key_that_is_set_twice_is_reported_at_any_depth(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"a\.yaml:{place}"):
        read_document(tmp_path / "a.yaml")
