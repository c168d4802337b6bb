"""Without the extra: help works and does not import it, and `clew serve` says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {"fastapi", "uvicorn", "alembic", "starlette", "psycopg"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from clew.cli.main import run
run()
"""


@pytest.mark.exec
@pytest.mark.parametrize(
    ("words", "response"),
    [
        (["serve"], "uvicorn is not installed; pip install 'clew[serve]'"),
        (["token", "create", "x", "--folder", "/nowhere/x"], "is not installed; pip install 'clew[serve]'"),
    ],
)
def test_it_says_what_to_install(words: list[str], response: str) -> None:
    done = subprocess.run([sys.executable, "-c", HIDE, *words], capture_output=True, text=True)
    assert done.returncode == 2 and response in done.stderr


@pytest.mark.parametrize("verb", ["serve", "token", "login", "runs"])
def test_help_loads_neither_server_nor_client(verb: str) -> None:
    code = f"""
import sys
sys.argv = ["clew", {verb!r}, "--help"]
from clew.cli.main import run
try:
    run()
finally:
    heavy = {{"fastapi", "uvicorn", "sqlalchemy", "alembic", "httpx", "torch", "numpy"}} & set(sys.modules)
    print("HEAVY", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "HEAVY []" in done.stdout, done.stdout[-300:] + done.stderr[-300:]
