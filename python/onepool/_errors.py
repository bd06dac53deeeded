"""What can go wrong. Each is an `Error`, and what Python and NumPy raise for its like."""


class Error(Exception):
    """Any failure of onepool."""


class ArgumentError(Error, ValueError):
    """An argument has a value that it must not have."""


class ArrayTypeError(Error, TypeError):
    """An object is no array, or none that can be used here."""


class UnknownNameError(Error, ValueError):
    """The model has no input or output of this name."""


class DTypeError(Error, TypeError):
    """An array has another element type than the model, or one that there is none of here."""


class ShapeError(Error, ValueError):
    """An array has sizes, strides or a length that do not fit."""


class UnboundError(Error, ValueError):
    """An input has no array."""


class OverlapError(Error, ValueError):
    """Two arrays share bytes that the model cannot have shared."""


class StrictError(Error):
    """Strict mode forbids a copy."""


class BusyError(Error, RuntimeError):
    """Something else uses the binding or the memory now."""


class CancelledError(Error):
    """The run was cancelled. Its outputs are undefined."""


class TimeLimitError(Error, TimeoutError):
    """The run took longer than it was given. Its outputs are undefined."""


class ClosedError(Error, ValueError):
    """The session or binding is closed."""


class ModelError(Error, ValueError):
    """The model is not sound, or cannot be planned."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """The file of a model is not there."""


class UnsupportedError(ModelError, NotImplementedError):
    """The model is sound and uses what onepool does not have."""


class NoDeviceError(Error, ValueError):
    """There is no such device, or it cannot be opened."""


class OutOfMemoryError(Error, MemoryError):
    """Memory ran out, of the machine or of a device."""


class DeviceError(Error, RuntimeError):
    """A call of a device failed."""


class DeviceLostError(DeviceError):
    """The device stopped. Make a new session."""
