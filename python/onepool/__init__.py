"""Runs neural networks directly on the program's own arrays.

    import onepool
    session = onepool.Session("model.onnx")
    results = session.run({"x": x})

`Session.bind` ties arrays to a session once, for many runs on the same bytes. `verdicts` tells for each array whether it
was used in place or copied, and why. `onepool.generate` makes text with language models.
"""

from onepool import generate
from onepool._errors import (
    ArgumentError,
    ArrayTypeError,
    BusyError,
    CancelledError,
    ClosedError,
    DeviceError,
    DeviceLostError,
    DTypeError,
    Error,
    ModelError,
    ModelNotFoundError,
    NoDeviceError,
    OutOfMemoryError,
    OverlapError,
    ShapeError,
    StrictError,
    TimeLimitError,
    UnboundError,
    UnknownNameError,
    UnsupportedError,
)
from onepool._frame import Frame
from onepool._onepool import Cancel, Tensor, __version__
from onepool._session import Binding, Io, Outputs, Session, devices, empty
from onepool._tables import Devices, Plan, Profile, Table, Verdict, Verdicts

__all__ = [
    "ArgumentError",
    "ArrayTypeError",
    "Binding",
    "BusyError",
    "Cancel",
    "CancelledError",
    "ClosedError",
    "DTypeError",
    "DeviceError",
    "DeviceLostError",
    "Devices",
    "Error",
    "Frame",
    "Io",
    "ModelError",
    "ModelNotFoundError",
    "NoDeviceError",
    "OutOfMemoryError",
    "Outputs",
    "OverlapError",
    "Plan",
    "Profile",
    "Session",
    "ShapeError",
    "StrictError",
    "Table",
    "Tensor",
    "TimeLimitError",
    "UnboundError",
    "UnknownNameError",
    "UnsupportedError",
    "Verdict",
    "Verdicts",
    "__version__",
    "devices",
    "empty",
    "generate",
]
