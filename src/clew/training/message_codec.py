"""Values that ranks send each other, as bytes. Nothing is pickled: bytes from another process can never run code.

Numbers, text, containers, arrays, tensors and tables are sent, and objects of data classes and named tuples. The type
of an object must already be loaded by the receiver, and its constructor is not called. Arrays that are shared between
columns stay shared.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.data.table import Ragged, Table

_ALIGNMENT = 64
_SCALARS = (bool, int, float, str)
_Node = Any
"""A value as JSON: a scalar, or a list that begins with the letter of its kind."""


def encode(value: Any) -> bytearray:
    """Return a value as bytes.

    Args:
        value: Numbers, text, bytes, containers, arrays, tensors, tables, data classes and named tuples of these.

    Raises:
        TypeError: It contains something else.

    Example:
        >>> decode(encode({"loss": 0.5, "counts": np.arange(3)}))
        {'loss': 0.5, 'counts': array([0, 1, 2])}
    """
    encoder = _Encoder()
    header = json.dumps(encoder.node(value)).encode()
    data = bytearray(len(header).to_bytes(8, "little") + header)
    for buffer in encoder.buffers:
        data += bytes(-len(data) % _ALIGNMENT)
        data += buffer
    return data


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Return the value that `encode` encoded. Arrays of it use the memory of `data`.

    Raises:
        ValueError: The bytes are not such a value.
    """
    view = memoryview(data)
    size = int.from_bytes(view[:8], "little")
    if size + 8 > len(view):
        raise ValueError("a message was cut")
    try:
        return _Decoder(view, 8 + size).value(json.loads(bytes(view[8 : 8 + size])))
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, RuntimeError) as error:
        raise ValueError(f"not a message ({type(error).__name__}: {str(error)[:80]})") from error


class _Encoder:
    """Turns a value into JSON, and collects the memory of its arrays."""

    def __init__(self) -> None:
        self.buffers: list[memoryview | bytes] = []
        self._arrays: dict[int, int] = {}
        self._alive: list[Any] = []
        """Arrays are identified by their address, so they must exist until the end."""

    def node(self, value: Any) -> _Node:
        if value is None or type(value) in _SCALARS:
            return value
        if isinstance(value, Tensor | np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return ["s", self._array(np.asarray(value))]
        if isinstance(value, bytes | bytearray):
            return ["b", self._array(np.frombuffer(value, np.uint8))]
        if isinstance(value, dict):
            return ["d", [[self.node(key), self.node(item)] for key, item in value.items()]]
        if isinstance(value, list | tuple) and not _is_named_tuple(type(value)):
            return ["l" if isinstance(value, list) else "t", [self.node(item) for item in value]]
        return self._object(value)

    def _object(self, value: Any) -> _Node:
        of = type(value)
        name = [of.__module__, of.__qualname__]
        if _is_named_tuple(of):
            return ["n", *name, [self.node(item) for item in value]]
        if not _is_allowed(of):
            raise TypeError(f"a {of.__qualname__} cannot be sent to another rank; use numbers, arrays or data classes")
        return ["o", *name, [[key, self.node(item)] for key, item in _state(value).items()]]

    def _array(self, value: Tensor | np.ndarray[Any, Any]) -> _Node:
        number = self._arrays.get(id(value))
        if number is not None:
            return ["r", number]
        self._arrays[id(value)] = len(self._arrays)
        self._alive.append(value)
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return ["T", str(value.dtype).removeprefix("torch."), list(value.shape), self._buffer(flat.numpy().data)]
        if value.dtype.hasobject or value.dtype.names:
            raise TypeError(f"an array of {value.dtype} cannot be sent to another rank; use numbers or text")
        plain = np.ascontiguousarray(value)
        return ["a", plain.dtype.str, list(value.shape), self._buffer(plain.reshape(-1).view(np.uint8).data)]

    def _buffer(self, memory: memoryview) -> list[int]:
        self.buffers.append(memory)
        return [memory.nbytes]


class _Decoder:
    """Makes values of JSON and the memory behind it."""

    def __init__(self, view: memoryview, position: int) -> None:
        self._view, self._position = view, position
        self._arrays: list[Any] = []

    def value(self, node: _Node) -> Any:
        if node is None or isinstance(node, _SCALARS):
            return node
        kind, *rest = node
        if kind == "l":
            return [self.value(item) for item in rest[0]]
        if kind == "t":
            return tuple(self.value(item) for item in rest[0])
        if kind == "d":
            return {self.value(key): self.value(item) for key, item in rest[0]}
        if kind == "r":
            return self._arrays[rest[0]]
        if kind == "s":
            return self.value(rest[0])[()]
        if kind == "b":
            return self.value(rest[0]).tobytes()
        if kind in ("a", "T"):
            return self._array(kind, *rest)
        module, name, values = rest
        return _make(kind, _loaded_type(module, name), values, self)

    def _array(self, kind: str, dtype: str, shape: list[int], size: list[int]) -> Any:
        start = self._position + -self._position % _ALIGNMENT
        memory = self._view[start : start + size[0]]
        if len(memory) != size[0]:
            raise ValueError("a message was cut")
        self._position = start + size[0]
        numpy = kind == "a"
        array: Any = _numpy(memory, np.dtype(dtype), shape) if numpy else _tensor(memory, getattr(torch, dtype), shape)
        self._arrays.append(array)
        return array


def _numpy(memory: memoryview, dtype: np.dtype[Any], shape: list[int]) -> np.ndarray[Any, Any]:
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return np.frombuffer(memory, dtype).reshape(shape) if memory.nbytes else np.empty(shape, dtype)


def _tensor(memory: memoryview, dtype: Any, shape: list[int]) -> Tensor:
    if not isinstance(dtype, torch.dtype):
        raise ValueError("an unknown type of tensor")
    return torch.frombuffer(memory, dtype=dtype).reshape(shape) if memory.nbytes else torch.empty(shape, dtype=dtype)


def _loaded_type(module: str, name: str) -> type:
    of: Any = sys.modules[module]
    for part in name.split("."):
        of = getattr(of, part)
    if not isinstance(of, type):
        raise ValueError(f"{name} is not a type")
    return of


def _make(kind: str, of: type, values: list[Any], decoder: _Decoder) -> Any:
    """Make an object without calling any of its methods."""
    if kind == "n" and _is_named_tuple(of):
        return tuple.__new__(of, [decoder.value(item) for item in values])
    if kind != "o" or not _is_allowed(of):
        raise ValueError(f"a {of.__qualname__} is not accepted from another process")
    made: Any = object.__new__(of)
    for key, item in values:
        object.__setattr__(made, key, decoder.value(item))
    return made


def _is_named_tuple(of: type) -> bool:
    return issubclass(of, tuple) and hasattr(of, "_fields")


def _is_allowed(of: type) -> bool:
    return of in (Table, Ragged) or dataclasses.is_dataclass(of)


def _state(value: Any) -> dict[str, Any]:
    slots = [name for of in type(value).__mro__ for name in getattr(of, "__slots__", ()) if hasattr(value, name)]
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}
