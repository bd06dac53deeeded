"""Sessions and bindings."""

from __future__ import annotations

import asyncio
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from onepool import _onepool
from onepool._frame import Frame
from onepool._onepool import Cancel, Tensor
from onepool._options import Options, options
from onepool._tables import Devices, Plan, Profile, Verdict, Verdicts

Array: TypeAlias = np.ndarray[Any, Any]
T = TypeVar("T")


class Io(NamedTuple):
    """An input or output as the model declares it."""

    name: str
    dtype: str | None
    """The name of its element type, where the model has one."""
    shape: tuple[int | str | None, ...] | None
    """Its sizes, where the model has them: numbers, names of open sizes, or None."""


@dataclass(frozen=True)
class Metadata:
    """What a model's file says of itself; what it does not say is empty or 0.

    Names that onnxruntime's `ModelMetadata` has mean the same.
    """

    format: str
    """"ONNX", "GGUF" or "TVM graph JSON"; empty for a graph without a file."""
    ir_version: int
    """Version of the file format."""
    graph_name: str
    producer_name: str
    """The program that wrote it."""
    producer_version: str
    domain: str
    """Whose model it is."""
    version: int
    """Version of the model."""
    description: str
    """What people are told of the model."""
    graph_description: str
    """What people are told of its graph."""
    opsets: dict[str, int]
    """Versions of operator sets by domain; "" is ONNX's own."""
    custom_metadata_map: dict[str, str]
    """The `metadata_props` of an ONNX model, the entries of a GGUF file, the metadata of a TVM graph. What is no text is one
    in JSON; of a GGUF file's array of more than 64 elements it is their number and kind."""


def metadata_of(row: _onepool.MetadataRow) -> Metadata:
    """What the native part tells."""
    said, opsets, properties = row
    return Metadata(*said, opsets, properties)


class _Serializable(Protocol):
    def SerializeToString(self) -> bytes: ...


class Outputs(dict[str, Any]):
    """Results by name."""

    def __init__(self, results: dict[str, Any], verdicts: _onepool.Verdicts) -> None:
        super().__init__(results)
        self._verdicts = verdicts

    @property
    def verdicts(self) -> Verdicts:
        """How each array of the run reached the devices, and why."""
        return _verdicts(self._verdicts)


def _verdicts(found: _onepool.Verdicts) -> Verdicts:
    return Verdicts(Verdict(*row) for row in found.rows())


def _dict(given: Mapping[str, Any], argument: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    if isinstance(given, Mapping):
        return dict(given)
    raise _onepool_type_error(argument, given)


def _onepool_type_error(argument: str, given: object) -> Exception:
    from onepool._errors import ArrayTypeError

    return ArrayTypeError(f"{argument}: expected arrays by name, as in {{'x': x}}, got {type(given).__name__}")


async def _in_thread(call: Callable[[], T], cancel: Cancel) -> T:
    """Calls on a thread. When the task is cancelled, so is the run, and the arrays are free when this returns."""
    run = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(run)
    except asyncio.CancelledError:
        cancel.cancel()
        while not run.done():
            try:
                await asyncio.wait([run])
            except asyncio.CancelledError:
                pass
        run.exception()
        raise


class Session:
    """A model made ready on devices.

    `model` is a path, the bytes of an ONNX model or an `onnx.ModelProto`; `base_dir` is the folder of its external data
    where it is no path. `input_frames` and `output_frames` describe inputs and outputs that are pictures in memory
    (`Frame`). `Options` has the other keyword arguments.

    Any thread may use a session, several at a time. Raises `ModelError`, `ModelNotFoundError`, `UnsupportedError` and
    `NoDeviceError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | _Serializable,
        *,
        base_dir: str | os.PathLike[str] | None = None,
        input_frames: Mapping[str, Frame] | None = None,
        output_frames: Mapping[str, Frame] | None = None,
        **given: Unpack[Options],
    ) -> None:
        path: str | os.PathLike[str] | None = None
        data: bytes | None = None
        if isinstance(model, (str, os.PathLike)):
            path = model
        elif isinstance(model, (bytes, bytearray, memoryview)):
            data = bytes(model)
        elif hasattr(model, "SerializeToString"):
            data = model.SerializeToString()
        else:
            from onepool._errors import ArrayTypeError

            raise ArrayTypeError(f"model: expected a path, bytes or an onnx.ModelProto, got {type(model).__name__}")
        self._native = _onepool.Session(
            path,
            data,
            base_dir,
            options(given),
            None if input_frames is None else _dict(input_frames, "input_frames"),
            None if output_frames is None else _dict(output_frames, "output_frames"),
        )

    @property
    def inputs(self) -> list[Io]:
        """The inputs, as the model declares them."""
        return [Io(*row) for row in self._native.inputs()]

    @property
    def outputs(self) -> list[Io]:
        """The outputs, as the model declares them."""
        return [Io(*row) for row in self._native.outputs()]

    @property
    def metadata(self) -> Metadata:
        """What the model's file says of itself."""
        return metadata_of(self._native.metadata())

    def get_modelmeta(self) -> Metadata:
        """The same, as onnxruntime's sessions name it."""
        return self.metadata

    @property
    def devices(self) -> list[str]:
        """The names of its devices."""
        return self._native.devices()

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        *,
        time_limit: float | None = None,
        cancel: Cancel | None = None,
    ) -> Outputs:
        """Runs once on these arrays and returns the outputs by name.

        An input is a NumPy array or anything with the buffer protocol or DLPack. It is read where it lies, at any
        strides of whole elements, and never written. One that is small and not C-contiguous is copied, unless the mode is
        strict. Outputs are written into the arrays of `out`, which are C-contiguous and writable, and into new ones else.
        `time_limit` is in seconds. Other threads run meanwhile; they must not touch the arrays. Ctrl-C ends a run of the
        main thread.

        What is to run many times on the same arrays is faster with `bind`.
        """
        arrays = None if out is None else _dict(out, "out")
        return Outputs(*self._native.run(_dict(inputs, "inputs"), arrays, time_limit, cancel))

    async def run_async(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        *,
        time_limit: float | None = None,
        cancel: Cancel | None = None,
    ) -> Outputs:
        """As `run`, on a thread of the loop's. Cancelling the task cancels the run and waits until it has ended."""
        token = cancel or Cancel()
        return await _in_thread(lambda: self.run(inputs, out, time_limit=time_limit, cancel=token), token)

    def bind(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        *,
        updates: Mapping[str, tuple[str, Any]] | None = None,
        strict: bool | None = None,
    ) -> Binding:
        """Ties arrays to the inputs and outputs, as `run` takes them, for many runs on the same bytes.

        `updates` has arrays that are an input and an output, such as caches of keys and values:
        `{"past": ("present", cache)}`. The model writes the elements that change and moves no others; where it cannot,
        that is an `ArgumentError`. The arrays are kept, and cannot be resized, until the binding is closed.
        """
        arrays = None if out is None else _dict(out, "out")
        pairs = None if updates is None else _dict(updates, "updates")
        return Binding(self._native.bind(_dict(inputs, "inputs"), arrays, pairs, strict))

    def close(self) -> None:
        """Lets go of the model and the devices. Bindings go on."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<onepool.Session, closed>"
        names = ", ".join(io.name for io in self.inputs), ", ".join(io.name for io in self.outputs)
        return f"<onepool.Session: {names[0]} -> {names[1]} on {', '.join(self.devices)}>"


class Binding:
    """Arrays tied to the inputs and outputs of a session: imported once, run many times.

    One thread uses it at a time; another one gets a `BusyError`.
    """

    def __init__(self, native: _onepool.Binding) -> None:
        self._native = native

    def run(self, *, time_limit: float | None = None, cancel: Cancel | None = None) -> dict[str, Any]:
        """Runs once on what the arrays hold now and returns the outputs by name.

        The arrays of the outputs are the same in each run. Only outputs whose size is known no sooner are new ones.
        """
        return self._native.run(time_limit, cancel)

    async def run_async(self, *, time_limit: float | None = None, cancel: Cancel | None = None) -> dict[str, Any]:
        """As `run`, on a thread of the loop's. Cancelling the task cancels the run and waits until it has ended."""
        token = cancel or Cancel()
        return await _in_thread(lambda: self._native.run(time_limit, token), token)

    def rebind_input(self, name: str, array: Any) -> None:
        """Binds another array of the same shape. The last 8 sets of arrays stay imported, so going back is fast.

        A frame of several memories takes a list. In place of an array with strides it takes one with the same strides. An
        array of `updates` is bound for its output too.
        """
        self._native.rebind_input(name, array)

    def rebind_output(self, name: str, array: Any) -> None:
        """As `rebind_input`, for an output."""
        self._native.rebind_output(name, array)

    @property
    def outputs(self) -> dict[str, Any]:
        """The arrays that runs write to."""
        return self._native.outputs()

    @property
    def verdicts(self) -> Verdicts:
        """How each array reaches the devices, and why."""
        return _verdicts(self._native.verdicts())

    @property
    def plan(self) -> Plan:
        """What runs where, in which order."""
        return Plan(json.loads(self._native.plan()))

    def profile(self) -> Profile:
        """Runs once with a timestamp around every operator."""
        return Profile(json.loads(self._native.profile()))

    def close(self) -> None:
        """Lets go of the arrays."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def devices() -> Devices:
    """The devices that `Session` may be given."""
    return Devices(json.loads(_onepool.devices()))


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike = "float32") -> Array:
    """A NumPy array in pages that every device can import, of zeros.

    `shape` and `dtype` are as for `numpy.empty`; names of element types that NumPy has not are taken too.
    """
    from onepool._errors import ArrayTypeError, DTypeError, ShapeError

    given = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        sizes = [operator.index(size) for size in given]
    except TypeError:
        raise ArrayTypeError(f"shape: expected a size or sizes, got {shape!r}") from None
    if any(abs(size) >= 1 << 63 for size in sizes):
        raise ShapeError(f"shape: no array has the sizes {shape!r}")
    if isinstance(dtype, str):
        return Tensor(sizes, dtype).numpy()
    try:
        name = np.dtype(dtype).name
    except TypeError as error:
        raise DTypeError(f"dtype: {error}") from None
    return Tensor(sizes, name).numpy()
