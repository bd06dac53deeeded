"""Bad input: an exception that names the argument, and no byte of the caller's changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import conv, double, model
from onnx import helper

import onepool

X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("given", "base", "says"),
    [
        ([[1.0]], TypeError, "list is no array"),
        ("text", TypeError, "str is no array"),
        (None, TypeError, "NoneType is no array"),
        (object(), TypeError, "object is no array"),
        (3.5, TypeError, "float is no array"),
        (X.astype(np.float64), TypeError, "holds float32, got float64"),
        (X.astype(np.int8), TypeError, "holds float32, got int8"),
        (X.astype(">f4"), TypeError, ">f"),
        (X.astype(complex), TypeError, "Zd"),
        (np.array(["a"]), TypeError, "w"),
        (np.array([None]), TypeError, "O"),
        (np.zeros(2, [("a", "f4")]), TypeError, "T{"),
        (np.zeros((2, 3), "datetime64[s]"), TypeError, "no tensor by DLPack"),
        (b"abcd", TypeError, "got uint8"),
        (X[0], ValueError, "shape|sizes|dimensions"),
        (np.zeros((1, 2, 3), np.float32), ValueError, "shape|sizes|dimensions"),
        (np.zeros((2, 3, *[1] * 60), np.float32), ValueError, 'input "x"'),
    ],
    ids=str,
)
def test_inputs(session: onepool.Session, given: Any, base: type[Exception], says: str) -> None:
    for call in (session.run, session.bind):
        with pytest.raises(base, match=says) as error:
            call({"x": given})
        assert isinstance(error.value, onepool.Error) and '"x"' in str(error.value)
    assert session.run({"x": X})["y"].sum() == 12, "the session goes on"


def test_huge_shapes(session: onepool.Session) -> None:
    with pytest.raises(MemoryError, match='output "y"'):
        session.run({"x": np.broadcast_to(np.float32(0), (1 << 40, 1 << 4))})
    with pytest.raises(onepool.Error, match='input "x"|output "y"'):
        session.run({"x": np.broadcast_to(np.float32(0), (1 << 60, 1))})
    for shape in ((1 << 62,), (1 << 40, 1 << 40), (-1,)):
        with pytest.raises(onepool.Error, match="shape"):
            onepool.empty(shape)
    with pytest.raises(onepool.DTypeError, match="dtype"):
        onepool.empty((1,), "float31")


@pytest.mark.parametrize(
    ("given", "base", "says"),
    [
        ([0.0], TypeError, "list is no array"),
        (np.zeros((2, 3)), TypeError, "holds float32, got float64"),
        (np.zeros((3, 2), np.float32), ValueError, "has the shape"),
        (np.zeros((3, 2), np.float32).T, ValueError, "compact"),
        (np.zeros((2, 6), np.float32)[:, ::2], ValueError, "compact"),
        (np.broadcast_to(np.float32(0), (2, 3)), ValueError, "compact|read-only"),
        (bytes(24), TypeError, "got uint8"),
    ],
    ids=str,
)
def test_outputs(session: onepool.Session, given: Any, base: type[Exception], says: str) -> None:
    for call in (session.run, session.bind):
        with pytest.raises(base, match=says) as error:
            call({"x": X}, {"y": given})
        assert isinstance(error.value, onepool.Error) and '"y"' in str(error.value)


def test_read_only_arrays_are_never_written(device: str) -> None:
    x = np.full((512, 512), 3, np.float32)
    x.flags.writeable = False
    session = onepool.Session(double(), device=device)
    assert (session.run({"x": x})["y"] == 6).all() and (x == 3).all()
    y = np.zeros((512, 512), np.float32)
    y.flags.writeable = False
    with pytest.raises(ValueError, match='output "y".*read-only'):
        session.run({"x": x}, {"y": y})
    with pytest.raises(ValueError, match='output "y".*read-only'):
        session.bind({"x": x}).rebind_output("y", y)
    assert not y.any()


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = double()
    with pytest.raises(TypeError, match="device: expected a name or several, got 5"):
        onepool.Session(made, device=5)  # type: ignore[arg-type]
    for threads, says in ((-1, "threads is -1"), (100_000, "100000 threads are asked for"), (1 << 70, "threads is")):
        with pytest.raises(onepool.ArgumentError, match=says):
            onepool.Session(made, device="cpu", threads=threads)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(onepool.ArgumentError, match="cache_dir: .*no folder"):
        onepool.Session(made, device="cpu", cache_dir=file)
    monkeypatch.setenv("ONEPOOL_DEVICE", "nothing")
    with pytest.raises(onepool.NoDeviceError, match="nothing"):
        onepool.Session(made)
    monkeypatch.setenv("ONEPOOL_DEVICE", "cpu")
    assert "processor" in onepool.Session(made).devices[0]


def test_empty() -> None:
    assert onepool.empty(5).shape == (5,) and onepool.empty(np.int64(2)).shape == (2,)
    for dtype in (np.float16, np.dtype("float16"), "float16"):
        assert onepool.empty((2,), dtype).dtype == np.float16
    for dtype in (object, complex, 5):
        with pytest.raises(onepool.DTypeError, match="dtype"):
            onepool.empty((1,), dtype)
    for shape in (1.5, (1.5,), None):
        with pytest.raises(TypeError, match="shape"):
            onepool.empty(shape)  # type: ignore[arg-type]


def test_names(session: onepool.Session) -> None:
    for given in ({"x": X, "z": X}, {"z": X}):
        with pytest.raises(ValueError, match='there is no input "z"; the inputs are "x"'):
            session.run(given)
    with pytest.raises(ValueError, match='no output "z"'):
        session.run({"x": X}, {"z": X.copy()})
    with pytest.raises(ValueError, match=r'inputs \["x"\]'):
        session.run({})
    with pytest.raises(TypeError, match="inputs: names are texts"):
        session.run({1: X})  # type: ignore[dict-item]
    for bad in (X, [X], None, "x"):
        with pytest.raises(TypeError, match="inputs: expected arrays by name"):
            session.run(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="out: expected arrays by name"):
        session.run({"x": X}, [X])  # type: ignore[arg-type]
    binding = session.bind({"x": X})
    with pytest.raises(onepool.UnknownNameError):
        binding.rebind_input("z", X)
    with pytest.raises(onepool.UnknownNameError):
        binding.rebind_output("z", X.copy())
    with pytest.raises(onepool.ShapeError):
        binding.rebind_input("x", np.ones((3, 3), np.float32))
    with pytest.raises(onepool.DTypeError):
        binding.rebind_input("x", np.ones((2, 3)))
    assert binding.run()["y"].sum() == 12, "the binding is as it was"


@pytest.mark.parametrize("use", [lambda s: s.run({"x": X}), lambda s: s.bind({"x": X}), lambda s: s.inputs, lambda s: s.devices])
def test_closed_sessions(session: onepool.Session, use: Callable[[onepool.Session], object]) -> None:
    session.close()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        use(session)


def test_options(tmp_path: Path) -> None:
    made = double()
    with pytest.raises(ValueError, match="precision"):
        onepool.Session(made, precision="f8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="placement"):
        onepool.Session(made, placement="random")  # type: ignore[arg-type]
    with pytest.raises(onepool.NoDeviceError, match="nothing"):
        onepool.Session(made, device="nothing")
    with pytest.raises(FileNotFoundError, match="nothing.onnx.*No such file") as missing:
        onepool.Session("nothing.onnx", device="cpu")
    assert isinstance(missing.value, onepool.ModelNotFoundError)
    with pytest.raises(TypeError, match="model: expected a path"):
        onepool.Session(3)  # type: ignore[arg-type]
    with pytest.raises(onepool.ModelError, match="missing"):
        onepool.Session(tmp_path / "missing.onnx")
    for data in (b"", b"\xff" * 100, made.SerializeToString()[:-3]):
        with pytest.raises(onepool.ModelError):
            onepool.Session(data, device="cpu")
    unknown = model([helper.make_node("NoSuch", ["x"], ["y"])], {"x": (1, [1])}, {"y": (1, [1])})
    with pytest.raises(NotImplementedError, match="NoSuch"):
        onepool.Session(unknown, device="cpu")
    session = onepool.Session(made, device="cpu")
    for limit in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time_limit"):
            session.run({"x": X}, time_limit=limit)


def test_strict_mode_names_the_array() -> None:
    session = onepool.Session(double(), device="sim:2", strict=True)
    fields = np.ones((3, 3), [("value", np.float32), ("flag", np.uint8)])
    with pytest.raises(onepool.StrictError, match='"x"'):
        session.run({"x": fields["value"]})


def test_shared_bytes() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"]),
        helper.make_node("Add", ["x", "x"], ["z"]),
    ]
    io = (1, (64, 64))
    session = onepool.Session(model(nodes, {"x": io}, {"y": io, "z": io}), device="cpu")
    x = np.ones((64, 64), np.float32)
    both = np.empty((64, 64), np.float32)
    with pytest.raises(onepool.OverlapError, match="share memory"):
        session.run({"x": x}, {"y": both, "z": both})


def test_limits_and_cancelling() -> None:
    session = onepool.Session(conv(), device="cpu", threads=1)
    x = np.ones((1, 8, 256, 256), np.float32)
    with pytest.raises(TimeoutError, match="time limit"):
        session.run({"x": x}, time_limit=0.0)
    token = onepool.Cancel()
    token.cancel()
    assert token.cancelled
    with pytest.raises(onepool.CancelledError):
        session.run({"x": x}, cancel=token)
    binding = session.bind({"x": x})
    with pytest.raises(onepool.TimeLimitError):
        binding.run(time_limit=0.0)
    assert binding.run()["y"].shape == x.shape


def test_a_binding_is_one_threads_at_a_time() -> None:
    session = onepool.Session(conv(), device="cpu", threads=1)
    binding = session.bind({"x": np.ones((1, 8, 256, 256), np.float32)})
    token = onepool.Cancel()
    running = threading.Thread(target=lambda: pytest.raises(onepool.CancelledError, binding.run, cancel=token))
    busy: list[BaseException] = []
    running.start()
    while running.is_alive() and not busy:
        try:
            binding.verdicts
        except onepool.BusyError as error:
            busy.append(error)
            with pytest.raises(onepool.BusyError):
                binding.close()
            token.cancel()
    running.join()
    assert busy and "another thread" in str(busy[0])
    binding.close()
