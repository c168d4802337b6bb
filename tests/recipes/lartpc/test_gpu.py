"""The kernels for CUDA without a device: interpreted and emulated against torch, and compiled for an H200."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton, which torch for CUDA brings, is not installed"
)


def _run_check(what: str, **more: str) -> Any:
    command = [sys.executable, "-m", "tests.recipes.lartpc.check_gpu", what]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_triton
@pytest.mark.timeout(120)
def test_kernels_compute_what_torch_does() -> None:
    for case in _run_check("compare", TRITON_INTERPRET="1"):
        assert max(case.values()) < 4.5e-3, case  # bf16 rounds by up to 3.9e-3


@needs_triton
@pytest.mark.timeout(180)
def test_kernels_compile_for_an_h200(tmp_path: Path) -> None:
    assert all(size > 0 for size in _run_check("compile", TRITON_CACHE_DIR=str(tmp_path)).values())
