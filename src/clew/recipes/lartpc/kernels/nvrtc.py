"""Compiles the CUDA C++ of this package at the first use with NVRTC of torch: no CUDA toolkit is needed."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.cuda import _utils

FOLDER = Path(__file__).parent / "cuda"
COMMON = ("warp.cuh", "cells.cuh")


def read_source(name: str, common: tuple[str, ...] = COMMON) -> str:
    """Return the source of a file of kernels, after the headers that it needs."""
    return "\n".join((FOLDER / each).read_text() for each in (*common, f"{name}.cu"))


@cache
def load_kernel(file: str, name: str, device: torch.device, shared: int = 0) -> Any:
    """Return a kernel, to be called with grid, block, args and shared_mem.

    `shared` is the maximum number of bytes of shared memory.
    """
    major, minor = torch.cuda.get_device_capability(device)
    module = _utils._cuda_load_module(_binary(file, f"sm_{major}{minor}"), [name])
    function = module[name] if isinstance(module, dict) else getattr(module, name)
    if shared:
        function.set_shared_memory_config(shared)
    return function


@cache
def _binary(file: str, architecture: str) -> bytes:
    library = getattr(_utils, "_get_gpu_rtc_library", None) or _utils._get_nvrtc_library
    return compile_source(library(), read_source(file), architecture)


def compile_source(nvrtc: ctypes.CDLL, text: str, architecture: str) -> bytes:
    """Compile a source to machine code.

    Raises:
        RuntimeError: The compilation failed. The message is the log of the compiler.
    """
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"clew.cu", 0, None, None)
    try:
        options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
        if nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
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
