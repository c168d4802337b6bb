"""The blocks of Python of each page run as they are written, one after the other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from clew import Dataset, Run
from tests.pages.commands import PAGES, ROOT, blocks
from tests.pages.python_blocks import BY_OTHER_TESTS, RUN_HERE
from tests.pages.scenes import SCENES
from tests.sites.own_data import service_with_agent

HELP = (
    "no test runs these blocks. Add the page to RUN_HERE in tests/pages/python_blocks.py, or name the test that runs "
    "them in BY_OTHER_TESTS"
)
CLIENT = "docs/howto/client.md"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_every_block_is_run(page: str) -> None:
    assert (page in RUN_HERE) != (page in BY_OTHER_TESTS), f"{page}: {HELP}"


@pytest.mark.parametrize("page", BY_OTHER_TESTS)
def test_the_named_test_reads_the_page(page: str) -> None:
    file, _, function = BY_OTHER_TESTS[page].partition("::")
    text = (ROOT / file).read_text()
    assert Path(page).name in text or page == CLIENT
    assert not function or function in {each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    here = RUN_HERE[page]
    for name in here.presumes:
        SCENES[name](request)
    together, scripts = [here.before], []
    for number, block in enumerate(blocks(page, "python")):
        for old, new in here.replaced:
            block = block.replace(old, new)
        if number in here.apart:
            scripts.append(block)
        else:
            together.append(block)
    for number, text in enumerate(["\n".join(together), *scripts]):
        Path(f"script{number}.py").write_text(text)
        command = [sys.executable, f"script{number}.py"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert ended.returncode == 0, f"{text}\n{ended.stdout[-1000:]}\n{ended.stderr[-2000:]}"


@pytest.mark.long
@pytest.mark.slow
def test_jobs_of_the_page_on_the_client_run(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced = {
        "/data/tracking": str(dataset.path),
        '"my_recipe.py"': '"tracking"',
        '"train.epochs": 5': '"train.epochs": 1',
        "rucio:user.me:samples": str(dataset.path),
        "rucio:user.me:models?rse=SITE_DISK": f"file://{tmp_path}/models",
        '"gpus": 1, "memory": "16G", ': "",
    }
    monkeypatch.chdir(tmp_path)
    with service_with_agent(tmp_path) as live:
        monkeypatch.setenv("CLEW_SERVER", live.url)
        monkeypatch.setenv("CLEW_TOKEN", live.token)
        for block in blocks(CLIENT, "python")[:2]:
            for old, new in replaced.items():
                block = block.replace(old, new)
            exec(compile(block, CLIENT, "exec"), {})
    assert "finished" in capsys.readouterr().out
    assert Path("best.safetensors").stat().st_size > 0
    assert [Run.open(each).path for each in Path("models").iterdir()]
