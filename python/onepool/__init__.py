"""Runs neural networks directly on the program's own arrays.

    import onepool
    session = onepool.Session("model.onnx")
    results = session.run({"x": x})

`Session.bind` ties arrays to a session once, for many runs on the same bytes. `verdicts` tells for each array whether it
was used in place or copied, and why. `onepool.generate` makes text with language models.

What the library says goes to the logger `onepool` of the package `logging`.
"""

import atexit as _atexit
import logging as _logging

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
from onepool._onepool import Cancel, Tensor, __version__, tell_log as _tell_log
from onepool._options import Options
from onepool._session import Binding, Io, Metadata, Outputs, Session, devices, empty
from onepool._tables import Devices, Plan, Profile, Table, Verdict, Verdicts

# Nothing is printed unless the program asks for it.
_logging.getLogger("onepool").addHandler(_logging.NullHandler())
_atexit.register(_tell_log)

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
    "Metadata",
    "ModelError",
    "ModelNotFoundError",
    "NoDeviceError",
    "Options",
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
