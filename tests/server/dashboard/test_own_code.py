"""A user's own code from the form: a real server with its own agent, a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clew import Dataset
from clew.jobs.launchers.launcher import LaunchedJob
from clew.jobs.launchers.local import LocalLauncher
from clew.server.dashboard.submit_form import OWN, field_errors, make_form
from clew.storage.models import find_models
from tests.server.conftest import Live
from tests.server.dashboard.conftest import Visitor
from tests.server.dashboard.test_pages import logged_in
from tests.tuning import RECIPE
from tests.tuning.conftest import flat

__all__ = ["flat"]
SCRIPT = """
import sys
from my_numbers import ACCURACY
import clew
clew.log(val_accuracy=ACCURACY)
print("arguments", sys.argv[1:])
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """`clew serve` with its local agent."""
    folder = tmp_path_factory.mktemp("own") / "service"
    live = Live(folder, options=()).start()
    yield live
    live.stop()
    for attempt in (folder / "agent" / "jobs").glob("*/attempt-*"):
        LocalLauncher().kill(LaunchedJob("local", "", str(attempt)))


@pytest.fixture
def user(browser: Any, alone: Live) -> Iterator[Visitor]:
    visitor = Visitor(browser, alone, alone.token)
    yield visitor
    visitor.context.close()


def fill(page: Any, **values: str) -> None:
    """Fill in fields, also in sections that are closed."""
    for key, value in values.items():
        field = page.locator(f"[name='{key.replace('__', '.')}']")
        field.evaluate("box => { for (let up = box; up; up = up.parentElement) if (up.open === false) up.open = true }")
        field.fill(value)


def send(page: Any, state: str) -> str:
    """Submit the form, wait for the end of the job, and return the text of its page."""
    page.click("form#submit button.main")
    page.wait_for_url("**/jobs/*")
    page.wait_for_selector(f"h1 .state.{state}", timeout=150_000)
    return str(page.inner_text("main"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_own_script_with_arguments_is_run_and_stored(user: Visitor, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "my_numbers.py").write_text("ACCURACY = 0.75\n")
    page = user.open("/submit")
    page.select_option("#kind", "script")
    page.wait_for_url("**kind=script*")
    page.set_input_files("#files", [tmp_path / "train.py", tmp_path / "my_numbers.py"])
    fill(page, job__name="mine", job__main="train.py", job__arguments="--lr '0.1 0.2'", job__store=f"{tmp_path}/models")
    fill(page, job__memory_gb="4", job__minutes="10", job__requeue="1")
    text = send(page, "done")
    assert "arguments ['--lr', '0.1 0.2']" in text
    (model,) = find_models(f"{tmp_path}/models", "val_accuracy > 0.7")
    assert model.location in text and "10 m 00 s" in text and user.faults == []


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_own_recipe_is_trained_with_its_settings(user: Visitor, flat: Dataset, tmp_path: Path) -> None:
    (tmp_path / "my_slope.py").write_text(f"{Path(RECIPE).read_text()}\nimport my_numbers\n")
    (tmp_path / "my_numbers.py").write_text("ONE = 1\n")
    page = user.open(f"/submit?recipe={OWN}")
    page.set_input_files("#files", [tmp_path / "my_slope.py", tmp_path / "my_numbers.py"])
    fill(page, job__name="slope", job__main="my_slope.py", job__dataset=str(flat.path), settings="model: {width: [")
    page.wait_for_selector("[data-field='settings'].wrong")
    fill(page, settings="wide: 5", train__epochs="1", train__threads="1")
    page.wait_for_function("() => document.getElementById('yaml').value.includes('my_slope.py')")
    assert "epoch" in send(page, "done")
    page.click(".actions a.button.main")
    page.wait_for_url("**/runs/*")
    assert "finished" in page.inner_text("h1") and user.faults == []


@pytest.mark.timeout(300)
def test_the_error_of_a_failed_job_is_on_its_page(user: Visitor, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("x = 1\nraise ValueError('no beam')\n")
    page = user.open(f"/submit?kind=script&recipe={OWN}")
    page.set_input_files("#files", tmp_path / "fails.py")
    page.wait_for_function("() => document.querySelector(\"[name='job.name']\").value === 'fails'")
    assert "fails.py:2: ValueError: no beam" in send(page, "failed")


def test_mistakes_are_reported_at_their_fields(alone: Live) -> None:
    with logged_in(alone, alone.token) as client:
        values = {"kind": "script", "recipe": OWN, "job.name": "mine", "job.arguments": "'open", "job.store": "models"}
        values["job.dataset"] = "/data"
        answer = client.post("/submit/check", data=values).json()
        assert answer["error"] == "choose the file of your recipe or script"
        assert set(answer["fields"]) == {"job.arguments", "job.store", "job.dataset"}
        values |= {"file:a.py": "", "file:../b.py": "", "job.main": "c.py", "job.arguments": ""}
        answer = client.post("/submit/check", data=values).json()
        assert answer["fields"]["job.main"] == "one of the chosen files"
        values |= {"job.main": "a.py"}
        response = client.post("/submit", data=values)
        assert response.status_code == 422 and "../b.py" in response.text


def test_places_in_stores_are_accepted_and_unknown_schemes_are_refused(alone: Live) -> None:
    store = "rucio:user.me:models?rse=DISK"
    with logged_in(alone, alone.token) as client:
        values = {"kind": "train", "recipe": "tracking", "job.name": "mine", "job.store": store}
        for url in ("rucio:user.me:samples", "s3://bucket/samples", "root://host//samples", "https://host/samples"):
            answer = client.post("/submit/check", data={**values, "job.dataset": url}).json()
            assert answer["fields"] == {}, answer
        answer = client.post("/submit/check", data={**values, "job.dataset": "rucoi:user.me:samples"}).json()
        assert "unknown scheme 'rucoi'" in answer["fields"]["job.dataset"]


def test_settings_of_clew_are_not_settings_of_an_own_recipe() -> None:
    form = make_form(OWN, "train")
    form.fill({"settings": "train: {epochs: 3}"})
    assert form.check() is None and "fields of their own" in field_errors(form.fields().values())["settings"]
    form.fill({"settings": "model: {hidden: 8}", "train.epochs": "3"})
    form.recipe_file = "mine.py"
    assert form.check() == {"recipe": "mine.py", "train": {"epochs": 3}, "model": {"hidden": 8}}
