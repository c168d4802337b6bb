"""CUDA C++ of this package, compiled when first used by NVRTC, which comes with torch: no toolkit is needed."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.cuda import _utils

FOLDER = Path(__file__).parent / "cuda"
COMMON = ("warp.cuh", "cells.cuh")


def source(name: str, common: tuple[str, ...] = COMMON) -> str:
    """A file of kernels behind what it needs."""
    return "\n".join((FOLDER / each).read_text() for each in (*common, f"{name}.cu"))


@cache
def kernel(file: str, name: str, device: torch.device, shared: int = 0) -> Any:
    """To be called with grid, block, args and shared_mem; `shared`: bytes of shared memory it may ask for."""
    major, minor = torch.cuda.get_device_capability(device)
    found = _utils._cuda_load_module(_binary(file, f"sm_{major}{minor}"), [name])
    made = found[name] if isinstance(found, dict) else getattr(found, name)
    if shared:
        made.set_shared_memory_config(shared)
    return made


@cache
def _binary(file: str, architecture: str) -> bytes:
    library = getattr(_utils, "_get_gpu_rtc_library", None) or _utils._get_nvrtc_library
    return compiled(library(), source(file), architecture)


def compiled(nvrtc: ctypes.CDLL, text: str, architecture: str) -> bytes:
    """Machine code of a source; raises RuntimeError with what the compiler says."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"clew.cu", 0, None, None)
    try:
        words = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        if nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words)):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"NVRTC: {log.value.decode()}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
