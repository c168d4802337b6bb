"""`clew init --from-weaver`: bad input is one line, and the recipe works under every verb."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import uproot

import clew
from clew.core.config import Document, validate
from clew.errors import ConfigError
from clew.models.weaver.config import DataConfig
from clew.models.weaver.expressions import check, names_in, raw_columns
from clew.recipe import find
from tests.cli import clew as command
from tests.cli import done
from tests.models.weaver import AK8, TOP, write_jets
from tests.test_docs import ROOT, _blocks

PAGE = ROOT / "docs" / "howto" / "from-weaver.md"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(text: str, *words: str) -> str:
    """The message for a configuration that cannot be used."""
    Path("jets.yaml").write_text(text)
    outcome = command("init", "--from-weaver", "jets.yaml", *words)
    assert outcome.code == 2 and not Path("jets.py").exists()
    assert outcome.err.count("\n") == 1 and "Traceback" not in outcome.err
    return outcome.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("observers:", "observer:", "jets.yaml:38: unknown key 'observer'; did you mean 'observers'"),
        ("pad_mode: wrap", "pad_mode: edge", "pad_mode"),
        ("type: simple", "type: complex", "labels.type"),
        ("value: [jet_isTop, jet_isQCD]", "value: {a: 1}", "simple labels are a list of 0-1 variables"),
        ("[part_energy, 10, 0.1]", "[part_energy, 10, 0.1, 1, 2, 3, 4]", "is not a name, or [name, centre, factor"),
        ("[part_deta, null]", "[part_deta, x]", "is not a name, or [name, centre, factor"),
        ("np.log(part_pt)", "np.log(part_pt", "not an expression"),
        ("np.log(part_pt)", "np.logg(part_pt)", "no function 'np.logg'; did you mean 'log'"),
        ("np.log(part_pt)", "mylog(part_pt)", "no function 'mylog'"),
        ("np.log(part_pt)", "_knn(part_pt, part_pt, 3)", "no function '_knn'"),
        ("np.log(part_pt)", "np.load('x.npy')", "no function 'np.load'"),
        ("np.log(part_pt)", "part_pt.tofile('x')", "'.tofile' is not allowed"),
        ("np.log(part_pt)", "().__class__", "'.__class__' is not allowed"),
        ("np.log(part_pt)", "np.array([x for x in part_pt])", "is not allowed"),
        ("np.log(part_pt)", "part_pt * aux_training_", "'aux_training_' of weaver has no counterpart"),
        ("np.hypot(part_px, part_py)", "part_pt + 1", "the variable 'part_pt' is computed from itself"),
        ("weights:", "weights: {use_precomputed_weights: true}", "use_precomputed_weights needs weight_branches"),
        ("weights:", "weights: {use_precomputed_weights: false}", "need two reweight_vars"),
        ("inputs:", "input:", "unknown key 'input'"),
    ],
)
def test_what_cannot_be_converted_is_one_line(old: str, new: str, message: str) -> None:
    assert old in TOP
    assert message in refused(TOP.replace(old, new, 1))


def test_files_that_cannot_be_used_are_named() -> None:
    assert "cannot read missing.yaml" in command("init", "--from-weaver", "missing.yaml").err
    Path("net.py").write_text("def model():\n    pass\n")
    assert "net.py: no function get_model(data_config)" in refused(TOP, "net.py")
    assert "cannot read other.py" in refused(TOP, "other.py")
    Path("net.py").write_text("def get_model(:\n")
    assert "net.py: not a Python file" in refused(TOP, "net.py")
    assert "at most one name and one Python file" in refused(TOP, "a", "b")
    assert "clew init takes one name" in command("init").err


def test_what_has_no_counterpart_is_listed_and_written_into_the_recipe() -> None:
    Path("ak8.yaml").write_text(AK8 + "bucketing: {var: jet_pt, bins: 4}\nmonitor_variables: [jet_pt]\n")
    out = done("init", "tagger", "--from-weaver", "ak8.yaml")
    for line in ("test_time_selection:", "bucketing:", "monitor_variables:", "weights:"):
        assert f"different from weaver: {line}" in out
        assert f"- {line}" in Path("tagger.py").read_text()
    outcome = command("init", "tagger", "--from-weaver", "ak8.yaml")
    assert outcome.code == 2 and "tagger.py exists already" in outcome.err


@pytest.mark.parametrize(
    "text",
    ["-" * 2000 + "1", "a" + "[0]" * 2000, "+".join(["a"] * 5000), "a\x00", "9" * 5000],
    ids=["signs", "indices", "sums", "a zero byte", "digits"],
)
def test_an_expression_that_no_person_writes_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an expression of Python"):
        check(text)


@pytest.mark.parametrize(
    ("observer", "tree"),
    [
        ('"""\nopen("attacked", "w").close()\n"""', "Events"),
        ("' + open('attacked', 'w').name + '", "@observers@"),
        ("x", '"""\nopen("attacked", "w").close()\n"""'),
    ],
    ids=["an observer", "a placeholder", "a tree"],
)
def test_a_configuration_does_not_become_code(observer: str, tree: str) -> None:
    """The texts of a configuration from elsewhere are written into a Python file, which is executed later."""
    data = {"inputs": {"a": {"length": None, "vars": ["x"]}}, "labels": {"type": "simple", "value": ["y"]}}
    Path("jets.yaml").write_text(json.dumps({**data, "observers": [observer], "treename": tree}))
    done("init", "--from-weaver", "jets.yaml")
    config = find(str(Path("jets.py").absolute()))().config.data
    assert not Path("attacked").exists()
    assert (config.observers, config.treename) == ((observer,), tree)


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    data = {"inputs": {"a": {"length": None, "vars": ["x"]}}, "labels": {"type": "simple", "value": ["y"]}}
    with pytest.raises(ConfigError, match=r"'\(' is not a regular expression"):
        validate(DataConfig, Document({**data, "file_magic": {"z": {"(": 1}}}))


def test_expressions_name_their_columns() -> None:
    assert names_in("np.where(label == 1, jet_mass, 0.5 * jet_mass)") == ("label", "jet_mass")
    assert check("ak.sum(part_pt[part_pt > 1], axis=1)") and check("awkward.JaggedArray.ones_like(x)")
    assert raw_columns(("a", "x"), {"a": "b + c", "b": "np.log(d)"}) == ("d", "c", "x")


def test_events_of_no_class_are_an_error() -> None:
    Path("jets.yaml").write_text(TOP.replace("1-label", "0*label"))
    write_jets(Path("jets.root"), 40)
    done("init", "--from-weaver", "jets.yaml")
    outcome = command("prepare", "jets.py", "--input", "jets.root", "--output", "dataset", "--workers", "1")
    assert outcome.code == 2 and "an event belongs to no class of jet_isTop, jet_isQCD" in outcome.err


def test_variables_by_file_and_renamed_branches() -> None:
    magic = {"branch_magic": "{fatjet_: jet_}", "file_magic": "{label: {signal: 1, background: 0}}"}
    text = TOP.replace("jet_pt", "fatjet_pt") + "".join(f"{key}: {value}\n" for key, value in magic.items())
    Path("jets.yaml").write_text(text)
    for name in ("signal", "background"):
        with uproot.open(write_jets(Path("jets.root"), 40)) as file:
            columns = file["tree"].arrays()
        with uproot.recreate(f"{name}.root") as out:
            out.mktree("tree", {n: columns[n].type.content for n in columns.fields if n != "label"})
            out["tree"].extend({n: columns[n] for n in columns.fields if n != "label"})
    done("init", "--from-weaver", "jets.yaml")
    done("prepare", "jets.py", "--input", "signal.root", "--input", "background.root", "--output", "dataset")
    dataset = clew.Dataset("dataset")
    labels = np.concatenate([dataset.read(split).fixed("_label_") for split in dataset.splits])
    assert sorted(np.unique(labels, return_counts=True)[1]) == [40, 40]


@pytest.mark.long
def test_the_commands_of_the_page_run() -> None:
    Path("top.yaml").write_text(TOP)
    Path("network.py").write_text(_blocks(PAGE, "python")[0])
    for number in range(3):
        write_jets(Path(f"train_{number}.root" if number < 2 else "test_0.root"), 200, number)
    lines = [shlex.split(line) for block in _blocks(PAGE, "sh") for line in block.splitlines()]
    assert [words[1] for words in lines] == ["init", "prepare", "train", "evaluate", "predict", "export", "predict"]
    for words in lines:
        done(*words[1:])
    with uproot.open("scores.root") as file:
        [tree] = [each for each in file.values() if each.classname == "TTree"]
        scores = tree.arrays(library="np")
    assert {"score_jet_isTop", "score_jet_isQCD", "event_no", "jet_pt"} <= set(scores)
    np.testing.assert_allclose(scores["score_jet_isTop"] + scores["score_jet_isQCD"], 1, rtol=1e-6)
    again = clew.Table.load("again.h5")
    np.testing.assert_allclose(again.fixed("score_jet_isTop"), scores["score_jet_isTop"], atol=1e-5)

    recipe = find("top.py")()
    events = next(iter(recipe.read("test_0.root")))
    in_memory = clew.predict("runs/top-001", events.drop("label").to_awkward())
    np.testing.assert_allclose(in_memory["score_jet_isTop"], scores["score_jet_isTop"], atol=1e-6)
