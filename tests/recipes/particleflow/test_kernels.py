"""Triton kernels without a GPU, with the interpreter, which must be selected before Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from . import ROOT


@pytest.mark.parametrize("part", ["all", pytest.param("compiled", marks=pytest.mark.long)])
def test_kernels_agree_with_double_precision(part: str) -> None:
    pytest.importorskip("triton", reason="comes with torch for GPUs")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.recipes.particleflow.check_kernels", part]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stderr[-3000:]
