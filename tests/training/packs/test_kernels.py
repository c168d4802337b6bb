"""The Triton kernels of a pack without a GPU: interpreted and compared with torch, and compiled for an H200."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def _run_check(*arguments: str, **environment: str) -> Any:
    pytest.importorskip("triton", reason="triton (a part of torch for CUDA) is not installed")
    command = [sys.executable, "-m", "tests.training.packs.check_kernels", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_layers_and_adam_give_the_results_of_torch() -> None:
    errors = _run_check(TRITON_INTERPRET="1")
    assert max(errors.values()) < 3e-6, errors


@pytest.mark.long
def test_kernels_compile_for_an_h200(tmp_path: Path) -> None:
    assert all(size > 0 for size in _run_check("compile", TRITON_CACHE_DIR=str(tmp_path)).values())
