"""Element types and arrays of NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from onepool._errors import DTypeError
from onepool._onepool import Pages


@cache
def dtype(name: str) -> np.dtype[Any]:
    """The NumPy element type of a name; those that NumPy has not are of the package ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return known
    except (ImportError, AttributeError):
        message = f"NumPy has no {name}: install the package ml_dtypes, or give an onepool.Tensor for it and use DLPack"
        raise DTypeError(message) from None


def view(pages: Pages, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array over these bytes, which keeps them."""
    return np.ndarray(shape, dtype(name), memoryview(pages))
