"""Numbers out of a pickle, without running what it says.

A pickle is a program that may call anything. Where it asks for what NumPy arrays need, stand-ins are called that check
what they are given; whatever else it names is refused before it is looked up, so nothing of the file is ever run.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from clew.errors import DataError

_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


def load(stream: BinaryIO) -> Any:
    """What a pickle holds: containers, numbers, text and arrays of numbers.

    An array is an `Array` until `value` makes it one of NumPy's.

    Raises:
        DataError: it names anything else, or is damaged.
    """
    try:
        return _Unpickler(stream).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle makes its reader raise anything
        raise DataError(f"not a readable pickle ({type(error).__name__}: {str(error)[:80]})") from error


class Kind:
    """A dtype as a pickle describes it."""

    def __init__(self, code: Any = "", *rest: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        if any(part is not None for part in state[2:5]):
            raise DataError("holds records, not numbers")
        self.order = str(state[1])

    @property
    def real(self) -> np.dtype[Any]:
        """The dtype.

        Raises:
            DataError: it is not one of numbers.
        """
        if not _NUMBERS.fullmatch(self.code) or self.order not in "<>=|":
            raise DataError(f"holds arrays of '{self.code[:20]}', not of numbers")
        return np.dtype(self.order.replace("|", "=") + self.code)


class Array:
    """An array as a pickle describes it."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = (0,)
        self._kind, self._turned, self._raw = Kind("f8"), False, b""
        self.items: list[Any] | None = None
        """Of an array of objects."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, turned, raw = state
        if not isinstance(kind, Kind):
            raise DataError("holds an array without a type")
        self._shape, self._kind, self._turned = tuple(int(size) for size in shape), kind, bool(turned)
        if isinstance(raw, list) and kind.code in ("O", "O8") and len(self._shape) == 1:
            self.items = raw
        else:
            self._raw = bytes(raw.encode("latin1") if isinstance(raw, str) else raw)

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """The array.

        Raises:
            DataError: type, shape and data do not fit.
        """
        kind = self._kind.real
        try:
            made = np.frombuffer(self._raw, kind).reshape(self._shape, order="F" if self._turned else "C")
        except (ValueError, OverflowError) as error:
            raise DataError(f"an array of it is damaged ({error})") from error
        return made.astype(kind.newbyteorder("="), copy=False)


class _Unpickler(pickle._Unpickler):  # the C one can be made to take all memory by a few bytes
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._known = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        place = module.replace("numpy._core", "numpy.core")
        if (place, name) not in self._known:
            raise DataError(f"holds {f'{module}.{name}'[:60]!r}, which no file of events needs: nothing of it was run")
        return self._known[place, name]


def _stand_ins() -> dict[tuple[str, str], Callable[..., Any]]:
    """What a pickle of arrays calls. Made anew for every file, since a pickle may change what it is handed."""
    return {
        ("numpy", "ndarray"): lambda *_: Array(),
        ("numpy", "dtype"): lambda *told: Kind(*told),
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: Array(),
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy.core.numeric", "_frombuffer"): _from_buffer,
        ("__builtin__", "bytes"): lambda: b"",
        ("_codecs", "encode"): lambda text, *_: str(text).encode("latin1"),
    }


def _scalar(kind: Kind, raw: Any) -> Any:
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    return np.frombuffer(data, kind.real)[0].item()


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any = "C") -> Array:
    made = Array()
    made.__setstate__((1, shape, kind, order == "F", bytes(raw)))
    return made
