"""Read numbers from a pickle without executing it.

A pickle is a program that can call any function. Here, the functions that NumPy arrays need are replaced by stand-ins
that check their arguments. Every other name is rejected before it is imported, so no code of the file is executed.
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
    """Return the content of a pickle: containers, numbers, text and arrays of numbers.

    Returns:
        An array is a `PickledArray`; its `value` is the NumPy array.

    Raises:
        DataError: the pickle contains anything else, or is damaged.
    """
    try:
        return _Unpickler(stream).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle makes its reader raise anything
        raise DataError(f"not a readable pickle ({type(error).__name__}: {str(error)[:80]})") from error


class PickledDtype:
    """A dtype as it is described in a pickle."""

    def __init__(self, code: Any = "", *rest: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        if any(part is not None for part in state[2:5]):
            raise DataError("holds records, not numbers")
        self.order = str(state[1])

    @property
    def real(self) -> np.dtype[Any]:
        """The NumPy dtype.

        Raises:
            DataError: it is not a dtype of numbers.
        """
        if not _NUMBERS.fullmatch(self.code) or self.order not in "<>=|":
            raise DataError(f"holds arrays of '{self.code[:20]}', not of numbers")
        return np.dtype(self.order.replace("|", "=") + self.code)


class PickledArray:
    """An array as it is described in a pickle."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = (0,)
        self._kind, self._fortran_order, self._raw = PickledDtype("f8"), False, b""
        self.items: list[Any] | None = None
        """The items of an array of objects."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran_order, raw = state
        if not isinstance(kind, PickledDtype):
            raise DataError("holds an array without a type")
        self._shape, self._kind, self._fortran_order = tuple(int(size) for size in shape), kind, bool(fortran_order)
        if isinstance(raw, list) and kind.code in ("O", "O8") and len(self._shape) == 1:
            self.items = raw
        else:
            self._raw = bytes(raw.encode("latin1") if isinstance(raw, str) else raw)

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """The NumPy array.

        Raises:
            DataError: type, shape and data do not fit.
        """
        kind = self._kind.real
        try:
            array = np.frombuffer(self._raw, kind).reshape(self._shape, order="F" if self._fortran_order else "C")
        except (ValueError, OverflowError) as error:
            raise DataError(f"an array of it is damaged ({error})") from error
        return array.astype(kind.newbyteorder("="), copy=False)


class _Unpickler(pickle._Unpickler):  # the C one can be made to take all memory by a few bytes
    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self._stand_ins = _stand_ins()

    def find_class(self, module: str, name: str) -> Any:
        place = module.replace("numpy._core", "numpy.core")
        if (place, name) not in self._stand_ins:
            raise DataError(
                f"holds {f'{module}.{name}'[:60]!r}, which event files do not need; nothing of the file was executed"
            )
        return self._stand_ins[place, name]


def _stand_ins() -> dict[tuple[str, str], Callable[..., Any]]:
    """Return the functions that a pickle of arrays calls. They are made again for every file, because a pickle can
    change
    them."""
    return {
        ("numpy", "ndarray"): lambda *_: PickledArray(),
        ("numpy", "dtype"): lambda *arguments: PickledDtype(*arguments),
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: PickledArray(),
        ("numpy.core.multiarray", "scalar"): _scalar,
        ("numpy.core.numeric", "_frombuffer"): _from_buffer,
        ("__builtin__", "bytes"): lambda: b"",
        ("_codecs", "encode"): lambda text, *_: str(text).encode("latin1"),
    }


def _scalar(kind: PickledDtype, raw: Any) -> Any:
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    return np.frombuffer(data, kind.real)[0].item()


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any = "C") -> PickledArray:
    array = PickledArray()
    array.__setstate__((1, shape, kind, order == "F", bytes(raw)))
    return array
