"""The CUDA C++ kernels on a processor: compiled by g++ with a warp made of coroutines (emulated.h)."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from clew.recipes.lartpc.kernels import nvrtc


@cache
def _library(file: str) -> ctypes.CDLL:
    text = f'#include "{Path(__file__).with_name("emulated.h")}"\n' + nvrtc.read_source(file, ("cells.cuh",))
    for name, arguments in re.findall(r"(\w+)\(([^()]*)\) \{", text[text.index('extern "C"') :]):
        if f"{name}(const u16*" not in text:
            continue
        names = ", ".join(each.split()[-1].lstrip("*") for each in arguments.split(","))
        text += f'\nextern "C" void run_{name}(int grid, int block, {arguments})'
        text += f" {{ run(grid, block, [&] {{ {name}({names}); }}); }}\n"
    folder = Path(tempfile.mkdtemp())
    (folder / f"{file}.cpp").write_text(text)
    command = ["g++", "-std=c++20", "-O2", "-w", "-shared", "-fPIC", f"{file}.cpp", "-o", f"{file}.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / f"{file}.so"))


def kernel(file: str, name: str, device: Any, shared: int = 0) -> Any:
    """As `compiled.kernel`, for tensors on a processor."""

    def launch(grid: Any, block: Any, arguments: list[Any], shared_mem: int = 0) -> None:
        pointers = [ctypes.c_void_p(each.data_ptr()) if torch.is_tensor(each) else each for each in arguments]
        getattr(_library(file), f"run_{name}")(grid[0], block[0], *pointers)

    return launch
