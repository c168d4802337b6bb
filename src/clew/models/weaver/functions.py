"""The functions that expressions of weaver may use: those of NumPy, awkward and math that compute, and weaver's own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import awkward as ak
import numpy as np

_NUMPY = (
    "all any argmax argmin argsort array asarray clip column_stack concatenate count_nonzero cumsum diff digitize "
    "expand_dims full full_like isclose isin max mean median min nan_to_num ones ones_like prod round sort "
    "squeeze stack std sum transpose var vstack where zeros zeros_like pi e inf nan newaxis bool_ float32 float64 "
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 interp hstack atleast_1d atleast_2d repeat tile arange "
    "linspace unwrap select"
)
_AWKWARD = (
    "all any argmax argmin argsort argcartesian argcombinations broadcast_arrays cartesian combinations concatenate "
    "count count_nonzero drop_none enforce_type fill_none firsts flatten from_regular full_like is_none isclose "
    "local_index mask max mean min moment nan_to_num nan_to_none num ones_like pad_none prod ptp ravel run_lengths "
    "singletons softmax sort std sum to_numpy to_packed to_regular unflatten values_astype var where with_field "
    "without_field zeros_like zip unzip"
)
_METHODS = (
    "T all any argmax argmin astype clip dtype flatten imag max mean min ndim ravel real reshape round shape size std "
    "sum transpose var "
    "E Et M Mt beta boost costheta cross deltaR deltaR2 deltaRapidityPhi deltaangle deltaeta deltaphi dot energy eta "
    "gamma mass mass2 mag mt p p2 phi pseudorapidity pt pt2 px py pz rapidity rho t theta to_beta3 x y z"
)
METHODS = frozenset(_METHODS.split())
"""Attributes of arrays and of four-momenta that an expression may use."""


def _four_momenta(*names: str) -> Any:
    def build(*components: Any) -> Any:
        import vector

        vector.register_awkward()
        return vector.zip(dict(zip(names, components, strict=True)))

    return build


def _clip(values: Any, low: float, high: float) -> Any:
    return np.minimum(np.maximum(values, low), high)


def _stack(arrays: Any, axis: int = 1) -> Any:
    if all(isinstance(each, np.ndarray) for each in arrays):
        return np.stack(arrays, axis=axis)
    cut = [slice(None)] * (arrays[0].ndim + 1)
    cut[axis] = np.newaxis  # type: ignore[call-overload]
    return ak.concatenate([each[tuple(cut)] for each in arrays], axis=axis)


def _pick(module: Any, names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names.split() if hasattr(module, name)}


_ufuncs = {name: value for name, value in vars(np).items() if isinstance(value, np.ufunc)}
_numpy = SimpleNamespace(**_ufuncs, **{k: v for k, v in _pick(np, _NUMPY).items() if k not in _ufuncs})
_lists = SimpleNamespace(ones_like=ak.ones_like, zeros_like=ak.zeros_like)  # the spelling of awkward 0
_awkward = SimpleNamespace(**_pick(ak, _AWKWARD), JaggedArray=_lists)
_math = SimpleNamespace(**{name: value for name, value in vars(math).items() if not name.startswith("_")})

NAMESPACES: dict[str, SimpleNamespace] = {
    "np": _numpy,
    "numpy": _numpy,
    "ak": _awkward,
    "awkward": _awkward,
    "math": _math,
}
HELPERS: dict[str, Any] = {
    "len": len,
    "abs": abs,
    "_clip": _clip,
    "_concat": lambda arrays, axis=0: ak.concatenate(arrays, axis=axis),
    "_stack": _stack,
    "_p4_from_pxpypze": _four_momenta("px", "py", "pz", "energy"),
    "_p4_from_ptetaphie": _four_momenta("pt", "eta", "phi", "energy"),
    "_p4_from_ptetaphim": _four_momenta("pt", "eta", "phi", "mass"),
}
