"""Frames: pictures as cameras, decoders and screens hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from onepool._errors import ArgumentError, ShapeError

Format: TypeAlias = Literal[
    "gray8", "rgb8", "bgr8", "rgba8", "bgra8", "yuyv", "uyvy", "nv12", "nv21", "i420", "p010"
]

# Bytes of a pixel in formats of one plane.
_PACKED = {"gray8": 1, "rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "yuyv": 2, "uyvy": 2}
# Planes after luma.
_PLANAR = {"nv12": 1, "nv21": 1, "i420": 2, "p010": 1}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """How an input or output of a model lies in memory as a picture.

    The first kernel of a run reads the frame where it lies, the last one writes it there. `Session(..., input_frames=...)`
    takes it by the name of the input. The caller then binds bytes: an array whose rows are as far apart as the frame's, or
    as many arrays as `memories` has numbers.

    Names of formats are those of GStreamer and V4L2. Numbers of a float tensor are `(value * scale - mean) / std` of a
    value from 0 to 255; `scale` is 1 / 255 unless given.
    """

    format: Format
    width: int
    """In pixels."""
    height: int
    strides: Sequence[int] | None = None
    """Bytes from row to row, of each plane; without it rows have no padding."""
    offsets: Sequence[int] | None = None
    """Bytes to the first pixel, of each plane; without it one plane follows the other."""
    memories: Sequence[int] | None = None
    """The array that each plane lies in, numbered from 0; without it all lie in one."""
    matrix: Literal["bt601", "bt709", "bt2020"] = "bt709"
    range: Literal["limited", "full"] | None = None
    """Without it limited for luma and chroma, else full."""
    crop: tuple[int, int, int, int] | None = None
    """x, y, width and height of the rectangle that the tensor is of; without it the whole frame."""
    size: tuple[int, int] | None = None
    """Width and height of the tensor where the model leaves them open; without it those of the rectangle."""
    filter: Literal["bilinear", "nearest"] = "bilinear"
    """How the rectangle is scaled to the tensor."""
    layout: Literal["nchw", "nhwc"] | None = None
    """The order of the tensor's dimensions, where its shape does not tell."""
    channels: Literal["gray", "rgb", "bgr", "rgba", "bgra"] | None = None
    """Of the tensor; without it by their number."""
    scale: float | None = None
    mean: float | Sequence[float] | None = None
    """One for all channels, or one for each."""
    std: float | Sequence[float] | None = None

    @classmethod
    def of(cls, planes: Any, format: Format, **settings: Any) -> Self:
        """The frame that NumPy arrays hold, with their sizes and strides.

        A format of one plane takes an array of rows, as `picture[y, x, channel]`, and views of larger pictures. Others take
        a list of an array for each plane. `settings` are the other fields.
        """
        single = format in _PACKED
        arrays = [np.asarray(planes)] if single else [np.asarray(plane) for plane in planes]
        expected = 1 if single else 1 + _PLANAR.get(format, 0)
        if not single and format not in _PLANAR:
            raise ArgumentError(f"format: {format!r} is none of {sorted(_PACKED | _PLANAR)}")
        if len(arrays) != expected:
            raise ShapeError(f"planes: {format} has {expected}, got {len(arrays)} arrays")
        if any(array.ndim < 2 for array in arrays):
            raise ShapeError("planes: expected rows of pixels, arrays of two dimensions or more")
        luma = arrays[0]
        row = int(np.prod(luma.shape[1:])) * luma.itemsize
        of_pixel = _PACKED.get(format, 2 if format == "p010" else 1)
        if row % of_pixel != 0:
            raise ShapeError(f"planes: a row of {row} bytes has no whole pixels of {of_pixel} bytes")
        frame = cls(
            format=format,
            width=row // of_pixel,
            height=luma.shape[0],
            strides=[array.strides[0] for array in arrays],
            memories=None if single else list(range(expected)),
        )
        return replace(frame, **settings)
