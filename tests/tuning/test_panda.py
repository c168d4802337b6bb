"""The contract of PanDA's hyper-parameter optimisation, with the real client if it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from clew import Dataset
from clew.core.config import to_yaml
from clew.errors import ConfigError
from clew.tuning import panda
from tests.cli import clew, done
from tests.tuning import template

METHODS = {
    "lr": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-1}},
    "batch_size": {"method": "uniformint", "dimension": {"low": 10, "high": 30}},
    "kind": {"method": "categorical", "dimension": {"categories": ["a", "b"], "grid_search": 0}},
    "drop": {"method": "quniform", "dimension": {"low": 0, "high": 1, "q": 0.25}},
    "mass": {"method": "normal", "dimension": {"mu": 5, "sigma": 1}},
}
NEVERGRAD = {"A": {"type": "Choice", "params": {"choices": [1, 4]}}, "B": {"type": "Scalar", "bounds": [0, 5]}}


def steer(points: Any, space: Any, number: int = 4, limit: int = 100) -> list[Any]:
    return panda.steer({"points": points, "opt_space": space}, count=number, limit=limit, seed=1)


def test_the_first_points_lie_in_the_space() -> None:
    for point in steer([], METHODS, number=20):
        assert list(point) == list(METHODS)
        assert 1e-4 <= point["lr"] <= 1e-1
        assert isinstance(point["batch_size"], int) and 10 <= point["batch_size"] <= 30
        assert point["kind"] in ("a", "b")
        assert point["drop"] in (0, 0.25, 0.5, 0.75, 1)
        assert 2 <= point["mass"] <= 8


@pytest.mark.parametrize(
    ("number", "limit", "existing", "expected"), [(4, 10, 2, 4), (4, 5, 2, 3), (4, 2, 2, 0), (4, 1, 2, 0)]
)
def test_no_more_than_both_limits_allow(number: int, limit: int, existing: int, expected: int) -> None:
    points = [[{"A": 1, "B": float(n)}, 0.0] for n in range(existing)]
    assert len(steer(points, NEVERGRAD, number, limit)) == expected


def test_new_points_follow_the_losses_and_leave_running_points_alone() -> None:
    near = [[{"A": 4, "B": 3 + n / 100}, 0.0] for n in range(8)]
    far = [[{"A": 1, "B": n / 8}, 9.0] for n in range(8)]
    under_way = [[{"A": 4, "B": 3.0}, None]]
    request = {"points": near + far + under_way, "opt_space": NEVERGRAD}
    new_points = [panda.steer(request, count=1, limit=100, seed=seed)[0] for seed in range(12)]
    assert sum(point["A"] == 4 for point in new_points) >= 9
    assert all(point != {"A": 4, "B": 3.0} for point in new_points)


def test_every_segment_gets_its_own_points() -> None:
    space = [{"model_id": 0, "search_space": NEVERGRAD}, {"model_id": "b", "search_space": METHODS}]
    new_points = steer([[[0, {"A": 1, "B": 2.0}], 0.3]], space, number=5)
    assert [model for model, _ in new_points].count("b") == 3
    assert all(set(point) == set(NEVERGRAD if model == 0 else METHODS) for model, point in new_points)


def test_a_grid_is_gone_through_and_never_empty() -> None:
    space = {n: {"method": "categorical", "dimension": {"categories": [1, 2], "grid_search": 1}} for n in "ab"}
    assert steer([], space) == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 2, "b": 2}]
    existing = [[point, 0.1] for point in steer([], space)]
    assert len(steer(existing, space, number=1)) == 1


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lr": {"method": "uniforn", "dimension": {"low": 0, "high": 1}}}, "lr: .*did you mean 'uniform'"),
        ({"lr": {"type": "Array"}}, "lr: .*type 'Array'"),
        ({"lr": {"method": "uniform", "dimension": {}}}, "lr: .*'low'"),
        ({}, "expected a mapping of parameters"),
    ],
)
def test_a_space_that_is_not_understood_is_reported(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        steer([], space)
    with pytest.raises(ConfigError, match="is not a point of this space"):
        steer([[1, 2, 3]], NEVERGRAD)


@pytest.fixture
def grid(flat: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder as the grid makes it: settings, a point, files, their list."""
    settings = template(flat, tune={"objective": "val/near", "direction": "maximize"}, train={"epochs": 2})
    (tmp_path / "my.yaml").write_text(to_yaml(settings.data))
    names = [path.name for path in sorted(flat.path.parent.glob("*.npz"))]
    for name in names:
        shutil.copy(flat.path.parent / name, tmp_path)
    (tmp_path / "input_ds.json").write_text(json.dumps(names))
    (tmp_path / "input.json").write_text(json.dumps({"lr": 0.05, "width": 5}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_point_is_evaluated_in_the_working_folder(grid: Path) -> None:
    words = ("tune", "evaluate", "my.yaml", "--name", "width=wide")
    assert "status 0" in done(*words)
    result = json.loads((grid / "output.json").read_text())
    assert result.keys() == {"status", "loss", "message"} and -1 <= result["loss"] < 0
    config = (grid / "run" / "config.yaml").read_text()
    assert "lr: 0.05" in config and "wide: 5" in config
    meta = json.loads((grid / "metadata.json").read_text())
    assert meta["val/near"] == -result["loss"]
    assert (grid / "metrics.tgz").stat().st_size > 0
    before = (grid / "run" / "records" / "rank-0.jsonl").read_text()
    done(*words)  # a job that is tried again finds its run
    assert (grid / "run" / "records" / "rank-0.jsonl").read_text() == before


@pytest.mark.parametrize(("point", "message"), [({"lr": -1}, "greater than 0"), ([1], "a point is a mapping")])
def test_an_impossible_point_has_a_finite_loss_and_a_reason(grid: Path, point: Any, message: str) -> None:
    (grid / "input.json").write_text(json.dumps(point))
    assert clew("tune", "evaluate", "my.yaml").code == 0
    result = json.loads((grid / "output.json").read_text())
    assert result["status"] == 2 and result["loss"] == 1e30 and message in result["message"]


def test_without_a_point_output_says_so_too(grid: Path) -> None:
    (grid / "input.json").unlink()
    assert clew("tune", "evaluate", "my.yaml").code == 2
    assert "input.json" in json.loads((grid / "output.json").read_text())["message"]


CLIENT = """
    import json, sys
    from pandaclient import PhpoScript
    words = json.load(open("words.json"))
    json.dump(PhpoScript.main(get_taskparams=True, ext_args=words, dry_mode=True), open("task.json", "w"), default=str)
"""


def test_the_real_client_carries_both_commands(grid: Path) -> None:
    """Its dry run makes the task; then the commands of iDDS and the pilot are run."""
    if importlib.util.find_spec("pandaclient") is None:
        pytest.skip("panda-client is not installed")
    steering = "clew tune steer --in %IN --out %OUT --n %NUM_POINTS --max %MAX_POINTS"
    space = {key: METHODS[key] for key in ("lr",)} | {"width": {"type": "Choice", "params": {"choices": [3, 5]}}}
    (grid / "space.json").write_text(json.dumps(space))
    words = ["--steeringExec", steering, "--evaluationExec", "clew tune evaluate my.yaml --name width=wide"]
    words += ["--evaluationContainer", "docker://clew", "--outDS", "user.me.clew", "--searchSpaceFile", "space.json"]
    words += ["--evaluationMeta", "metadata.json", "--evaluationMetrics", "metrics.tgz", "--checkPointToSave", "run"]
    (grid / "words.json").write_text(json.dumps([*words, "--maxPoints", "5", "--nPointsPerIteration", "3"]))
    url = dict.fromkeys(("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"), "https://127.0.0.1:9/server/panda")
    environment = {**os.environ, **url, "PANDA_BEHIND_REAL_LB": "1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(CLIENT)], check=True, env=environment, cwd=grid)
    task = json.loads((grid / "task.json").read_text())
    request = task["hpoRequestData"]
    steering_input = {
        "points": [[{"lr": 0.01, "width": 3}, 0.5], [{"lr": 0.02, "width": 5}, None]],
        "opt_space": request["opt_space"],
    }
    (grid / "in.json").write_text(json.dumps(steering_input))
    numbers = {"%NUM_POINTS": request["num_points_per_generation"], "%MAX_POINTS": request["max_points"]}
    command = request["arguments"]
    for name, value in {**numbers, "%IN": "in.json", "%OUT": "out.json"}.items():
        command = command.replace(name, str(value))
    done(*command.split()[1:])
    points = json.loads((grid / "out.json").read_text())
    assert len(points) == 3 and all(set(point) == {"lr", "width"} for point in points)
    (grid / "input.json").write_text(json.dumps(points[0]))
    payload = next(p["value"] for p in task["jobParameters"] if "evaluate" in str(p.get("value")))
    done(*urllib.parse.unquote(payload).split()[1:])
    assert json.loads((grid / "output.json").read_text())["status"] == 0
