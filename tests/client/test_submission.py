"""What a job is sent with: locations mean the same on the agent's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import storage
from clew.cli.jobs.submit_options import SubmitOptions
from clew.client.submission import submission
from clew.core.config import to_yaml
from clew.errors import ConfigError, RecipeError

URLS = ("rucio:user.me:events", "s3://bucket/events", "root://host//events", "https://host/events")


@pytest.mark.parametrize("url", URLS)
def test_urls_of_stores_stay_as_they_are(url: str) -> None:
    assert submission("tracking", dataset=url).dataset == url
    assert submission("tracking", [f"train.dataset={url}"]).dataset == url
    job = submission("tracking", [f"prepare.input=[{url}, local.txt]"], kind="prepare", name="made")
    assert job.spec["prepare"]["input"] == [url, str(Path("local.txt").absolute())]
    words = submission("", model={"model": "net.pt2", "train": [url], "val": ["b.h5"], "features": "X"}).arguments
    assert url in words and str(Path("b.h5").absolute()) in words


@pytest.mark.parametrize("url", URLS)
def test_urls_in_a_yaml_stay_as_they_are(url: str, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(to_yaml({"recipe": "tracking", "prepare": {"input": [url]}, "train": {"dataset": url}}))
    assert submission(str(file)).dataset == url
    assert submission(str(file), kind="prepare", name="made").spec["prepare"]["input"] == [url]


def test_inputs_are_for_preparations() -> None:
    SubmitOptions(recipe="tracking", kind="prepare", input=["rucio:user.me:events"]).check()
    with pytest.raises(ConfigError, match="--input goes with --kind prepare, not with train"):
        SubmitOptions(recipe="tracking", input=["rucio:user.me:events"]).check()


def test_an_unknown_scheme_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for location in ("rucoi:user.me:events", "s4://bucket/events"):
        scheme = location.partition(":")[0]
        with pytest.raises(ConfigError, match=f"unknown scheme '{scheme}'; use a path, rucio:SCOPE:NAME"):
            submission("tracking", dataset=location)
        with pytest.raises(ConfigError, match=f"unknown scheme '{scheme}'"):
            storage.expand(location)
    (tmp_path / "run:7").mkdir()
    assert submission("tracking", dataset="run:7").dataset == str(tmp_path / "run:7")


@pytest.mark.parametrize(
    ("location", "absolute"),
    [("a/b.h5", "a/b.h5"), ("file:a.txt", "a.txt"), ("c.root:tree/sub", "c.root:tree/sub")],
)
def test_local_paths_become_absolute(
    location: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage.absolute_location(location) == f"{tmp_path}/{absolute}"


def test_a_model_that_its_file_does_not_define_is_refused_before_the_job(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def build(): ...\n")
    with pytest.raises(RecipeError, match=r"net\.py has no 'bulid'; did you mean 'build'\?"):
        submission("", model={"model": f"{tmp_path}/net.py:bulid", "train": ["events.csv"]})
