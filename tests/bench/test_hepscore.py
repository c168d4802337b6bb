"""The form of hep-workloads, and HEPscore's arithmetic."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from clew.bench import compare
from clew.bench.workload import hepscore
from clew.errors import ConfigError
from tests.cli import clew, done


def summary(score: float, **report: Any) -> dict[str, Any]:
    scores = {"wl-scores": {"training": score}, "wl-stats": {"training": hepscore.score_stats([score])}, "log": "ok"}
    app = {"version": "v", "description": "d", "bmk_checksum": "c", "bmkdata_checksum": "data", "containment": "none"}
    info = {"copies": 1, "threads_per_copy": 2, "events_per_thread": 16}
    return {"run_info": info, "report": {**scores, **report}, "app": app}


def save(folder: Path, name: str, **facts: Any) -> Path:
    path = folder / name / "particleflow_summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(summary(**facts)))
    return path


def test_the_shipped_schema_is_that_of_the_models_and_takes_what_we_write() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    shipped = json.loads(hepscore.SCHEMA.read_text())
    assert shipped == hepscore.summary_schema()
    jsonschema.Draft202012Validator.check_schema(shipped)
    jsonschema.validate(summary(1.0), shipped)
    for part in ("run_info", "report", "app"):
        wrong = {name: value for name, value in summary(1.0).items() if name != part}
        with pytest.raises(jsonschema.ValidationError, match=part):
            jsonschema.validate(wrong, shipped)
    for scores in ({}, {"training": -1}, {"training": "fast"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(summary(1.0, **{"wl-scores": scores}), shipped)


def test_a_score_is_the_median_of_three_over_the_reference(tmp_path: Path) -> None:
    for name, value in (("one", 6.0), ("two", 90.0), ("three", 3.0)):
        save(tmp_path, name, score=value)
    score = hepscore.node_score(sorted(tmp_path.rglob("*.json")), hepscore.PUBLISHED)
    assert score.value == pytest.approx(2.0) and not score.notes
    assert score.workloads["particleflow"]["repetitions"] == pytest.approx([2.0, 1.0, 30.0])


def test_statistics_of_copies_have_mean_and_median() -> None:
    assert hepscore.score_stats([1.0, 2.0, 9.0]) == {"count": 3, "min": 1.0, "max": 9.0, "avg": 4.0, "median": 2.0}
    assert hepscore.score_stats([1.0, 2.0, 4.0, 9.0])["median"] == 3.0


def test_scores_of_a_run_and_workloads_are_averaged_geometrically(tmp_path: Path) -> None:
    first = save(tmp_path, "one", score=8.0)
    text = json.loads(first.read_text())
    text["report"]["wl-scores"]["inference"] = 50.0
    first.write_text(json.dumps(text))
    second = tmp_path / "other_summary.json"
    second.write_text(json.dumps(summary(3.0)))
    against = {
        "name": "ours",
        "scaling": 10,
        "benchmarks": {
            "particleflow": {"ref_scores": {"training": 2.0, "inference": 50.0}, "weight": 3.0},
            "other": {"ref_scores": {"training": 1.0}},
        },
    }
    file = tmp_path / "reference.yaml"
    file.write_text(json.dumps(against))
    score = hepscore.node_score([first, second], hepscore.load_reference(file))
    assert score.value == pytest.approx(10 * math.exp((3 * math.log(2) + math.log(3)) / 4))
    assert len(score.notes) == 2 and "1 of 3 repetitions" in score.notes[0]


def test_a_summary_can_be_the_reference(tmp_path: Path) -> None:
    reference, measured = save(tmp_path, "reference", score=4.0), save(tmp_path, "own", score=6.0)
    output = done("bench", "score", measured.parent, "--reference", reference)
    assert "score 1.5" in output and "1 of 3 repetitions" in output
    assert json.loads(done("bench", "score", measured, "--reference", reference, "--json"))["value"] == pytest.approx(
        1.5
    )


def test_summaries_that_cannot_be_scored_are_refused_in_one_line(tmp_path: Path) -> None:
    failed = save(tmp_path, "failed", score=1.0, log="out of memory at batch 64")
    other = tmp_path / "tracking_summary.json"
    other.write_text(json.dumps(summary(1.0)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken_summary.json").write_text('{"run_info": {}}')
    cases = {
        failed: "failed (out of memory",
        other: "no workload 'tracking'",
        tmp_path / "empty": "no *_summary.json in it",
        tmp_path / "broken_summary.json": "not a summary of a workload: run_info.copies",
        tmp_path / "none_summary.json": "No such file",
    }
    for path, message in cases.items():
        outcome = clew("bench", "score", path)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1) and message in outcome.err


def test_summaries_are_compared_only_where_data_and_batch_are_the_same(tmp_path: Path) -> None:
    def measured(seeds: list[float], batch: int) -> dict[str, Any]:
        epochs = [1.0, *(seeds[0] * factor for factor in (0.99, 1.0, 1.01))]
        return {"throughput_per_epoch": epochs, "throughput_per_seed": seeds, "batch_size_per_device": batch}

    a = tmp_path / "a" / "particleflow_summary.json"
    cases = {"a": ([2.0, 2.02, 1.98], 4), "b": ([4.0, 4.02, 3.98], 4), "c": ([4.0], 4), "d": ([1.0], 8)}
    for name, (seeds, batch) in cases.items():
        path = tmp_path / name / "particleflow_summary.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(summary(seeds[0], training=measured(seeds, batch))))
    row = compare.compare(a, tmp_path / "b" / a.name).rows[0]
    assert (row.ratio, row.n) == (2.0, (3, 3)) and row.p is not None and row.p < 0.01
    alone = compare.compare(a, tmp_path / "c" / a.name).rows[0]  # epochs are not repetitions
    assert (
        alone.p is None
        and alone.significance == "no repeats, significance not known; epochs of a training scatter by 1.0%"
    )
    with pytest.raises(ConfigError, match=r"batch_size_per_device is 4 in .* and 8 in"):
        compare.compare(a, tmp_path / "d" / a.name)


def test_many_rows_ask_more_of_each() -> None:
    rows = [compare.ComparedFigure("", 1.0, 2.0, p) for p in (0.03, None, 0.01, 0.04)]
    assert [row.p for row in compare.corrected(rows)] == [0.06, None, 0.03, 0.06]


def test_a_comparison_names_what_else_is_not_the_same(tmp_path: Path) -> None:
    paths = [save(tmp_path, name, score=1.0) for name in ("a", "b")]
    other = json.loads(paths[1].read_text())
    other["run_info"] |= {"precision": "bf16"}
    other["app"] |= {"devices": ["a GPU"]}
    paths[1].write_text(json.dumps(other))
    assert compare.compare(*paths).notes == ["devices: unknown and a GPU", "precision: unknown and bf16"]


def test_a_summary_is_checked_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "particleflow_summary.json"
    hepscore.write_summary(path, summary(2.5))
    assert hepscore.read_summary(path).report.wl_scores == {"training": 2.5} and path.read_text().endswith("}\n")
    with pytest.raises(ValidationError):
        hepscore.write_summary(path, {**summary(9.0), "run_info": {}})
    with pytest.raises(ValueError, match="not JSON compliant"):
        hepscore.write_summary(path, summary(9.0, more={"value": math.nan}))
    assert hepscore.read_summary(path).report.wl_scores == {"training": 2.5}


def test_scores_of_copies_are_rounded_to_four_digits() -> None:
    rounded = {"count": 2, "min": 1.0001, "max": 2.0, "avg": pytest.approx(1.50005), "median": pytest.approx(1.50005)}
    assert hepscore.score_stats([1.00006, 2.00004]) == rounded
    assert hepscore.score_stats([]) == {"count": 0, "min": 0.0, "max": 0.0, "avg": 0.0, "median": 0.0}


@pytest.mark.parametrize(("count", "notes"), [(2, ["2 of 3 repetitions"]), (3, []), (4, [])])
def test_fewer_than_three_repetitions_are_noted(count: int, notes: list[str], tmp_path: Path) -> None:
    for number in range(count):
        save(tmp_path, str(number), score=3.0)
    score = hepscore.node_score(sorted(tmp_path.rglob("*.json")), hepscore.PUBLISHED)
    assert score.value == pytest.approx(1.0) and score.reference == hepscore.PUBLISHED.name
    assert len(score.notes) == len(notes) and all(note in text for note, text in zip(notes, score.notes, strict=True))
    assert score.workloads["particleflow"] == {"median": 1.0, "repetitions": [1.0] * count, "weight": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log": "out of memory"}, "the run failed"),
        ({"wl-scores": {"other": 1.0}}, "no score 'training'"),
        ({"wl-scores": {"training": 0.0}}, "a score is 0"),
        ({"wl-scores": {}}, "not a summary of a workload: report.wl-scores"),
    ],
)
def test_a_summary_that_cannot_be_scored_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save(tmp_path, "one", score=1.0, **change)
    with pytest.raises(ConfigError, match=message):
        hepscore.node_score([path], hepscore.PUBLISHED)


def test_no_summary_is_no_score() -> None:
    with pytest.raises(ConfigError, match=r"no summary\.json file was given"):
        hepscore.node_score([], hepscore.PUBLISHED)


def test_workloads_of_the_reference_that_were_not_run_are_named(tmp_path: Path) -> None:
    names = {name: hepscore.ReferenceWorkload(ref_scores={"training": 1.0}) for name in ("particleflow", "b", "a")}
    against = hepscore.Reference(name="ours", benchmarks=names)
    score = hepscore.node_score([save(tmp_path, "one", score=2.0)], against)
    assert score.value == pytest.approx(2.0) and score.notes[-1] == "not included: a, b"
    other = tmp_path / "other_summary.json"
    other.write_text(json.dumps(summary(1.0)))
    with pytest.raises(ConfigError, match="no workload 'other'; it has particleflow, b, a"):
        hepscore.node_score([other], against)


def test_the_published_machine_is_the_default_and_a_summary_can_replace_it(tmp_path: Path) -> None:
    assert hepscore.load_reference(None) is hepscore.PUBLISHED
    made = hepscore.load_reference(save(tmp_path, "one", score=2.0))
    assert made.benchmarks["particleflow"].ref_scores == {"training": 2.0} and made.scaling == 1.0
    with pytest.raises(ConfigError, match="No such file"):
        hepscore.load_reference(tmp_path / "none_summary.json")


def test_results_of_other_settings_are_no_repetitions(tmp_path: Path) -> None:
    paths = [save(tmp_path, name, score=3.0) for name in ("a", "b", "c")]
    for path, info in zip(paths, ({"seed": 1}, {"seed": 2}, {"copies": 2}), strict=True):
        content = json.loads(path.read_text())
        content["run_info"] |= info
        path.write_text(json.dumps(content))
    assert hepscore.node_score(paths[:2], hepscore.PUBLISHED).value == pytest.approx(1.0)
    with pytest.raises(ConfigError, match=r"not repetitions of one measurement: copies is 1 in .* and 2 in "):
        hepscore.node_score(paths, hepscore.PUBLISHED)


def test_a_file_that_is_no_reference_is_refused_in_one_short_line(tmp_path: Path) -> None:
    file = tmp_path / "scale.json"
    file.write_text('{"kind": "scaling", "sizes": []}')
    with pytest.raises(ConfigError, match=r"scale.json: neither a summary .* nor a file with name and benchmarks"):
        hepscore.load_reference(file)
