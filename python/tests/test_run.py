"""Sessions and bindings on NumPy's arrays."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import conv, double, model, whole_pages
from onnx import TensorProto, helper

import onepool


def test_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(double(), path)
    x = np.ones((2, 3), np.float32)
    for given in (path, str(path), path.read_bytes(), double()):
        results = onepool.Session(given, device="auto").run({"x": x})
        assert list(results) == ["y"]
        np.testing.assert_array_equal(results["y"], x + x)
        assert results["y"].dtype == np.float32 and results["y"].flags.writeable


def test_what_the_model_declares(session: onepool.Session) -> None:
    assert session.inputs == [("x", "float32", ("n", "m"))]
    assert session.outputs[0].name == "y"
    assert "x -> y" in repr(session) and len(session.devices) == 1
    session.close()
    assert session.closed and "closed" in repr(session)


def test_nothing_is_copied_on_devices_that_share_memory(device: str, frame) -> None:
    session = onepool.Session(double(), device=device, strict=True)
    x, y = frame(), frame()
    results = session.run({"x": x}, {"y": y})
    assert results["y"] is y
    np.testing.assert_array_equal(y, frame() * 2)
    assert len(results.verdicts) == 2 and results.verdicts.copied == 0, results.verdicts
    assert all(verdict.device_copied == 0 for verdict in results.verdicts)
    # Arrays of the package's own are as good.
    results = session.run({"x": x})
    np.testing.assert_array_equal(results["y"], y)
    assert len(results.verdicts) == 2 and results.verdicts.copied == 0, results.verdicts


def test_a_view_at_any_offset_is_used_in_place(device: str) -> None:
    whole = np.arange(600 * 512 + 3, dtype=np.float32)
    x = whole[3 : 3 + 512 * 512].reshape(512, 512)
    session = onepool.Session(double(), device=device)
    results = session.run({"x": x})
    np.testing.assert_array_equal(results["y"], x + x)
    if device in ("cpu", "sim"):
        assert results.verdicts.copied == 0, results.verdicts


def test_a_binding_sees_what_the_arrays_hold(device: str, frame) -> None:
    x, y = frame(), frame()
    with onepool.Session(double(), device=device).bind({"x": x}, {"y": y}, strict=True) as binding:
        for value in (1, 2, 3):
            x[:] = value
            assert binding.run()["y"] is y
            assert (y == 2 * value).all()
        assert binding.verdicts.copied == 0
        other = frame()
        binding.rebind_input("x", other)
        np.testing.assert_array_equal(binding.run()["y"], frame() * 2)
        z = frame()
        binding.rebind_output("y", z)
        y[:] = 0
        assert binding.run()["y"] is z and binding.outputs["y"] is z and not y.any()
        np.testing.assert_array_equal(z, frame() * 2)
    with pytest.raises(onepool.ClosedError):
        binding.run()


def test_a_binding_makes_the_arrays_that_are_not_given(session: onepool.Session) -> None:
    x = np.ones((4, 4), np.float32)
    binding = session.bind({"x": x})
    first = binding.run()["y"]
    x[:] = 5
    assert binding.run()["y"] is first and binding.outputs["y"] is first and (first == 10).all()
    session.close()
    assert (binding.run()["y"] == 10).all(), "bindings go on"
    del binding
    gc.collect()
    assert (first == 10).all(), "the array keeps its memory"


STRIDED = {
    "transposed": lambda base: base.T,
    "reversed": lambda base: base[::-1, ::-1],
    "every second": lambda base: base[:, ::2],
    "cropped": lambda base: base[3:-1, 5:-2],
    "overlapping": lambda base: np.lib.stride_tricks.sliding_window_view(base[0], 256)[:256],
    "broadcast": lambda base: np.broadcast_to(base[0], (300, base.shape[1])),
    "Fortran": np.asfortranarray,
}


@pytest.mark.parametrize("strided", STRIDED)
def test_strided_inputs_are_read_where_they_lie(device: str, strided: str) -> None:
    base = whole_pages(np.arange(512 * 600, dtype=np.float32).reshape(512, 600))
    base.flags.writeable = False
    x = STRIDED[strided](base)
    session = onepool.Session(double(), device=device, strict=device == "sim")
    results = session.run({"x": x})
    np.testing.assert_array_equal(results["y"], x + x)
    if device in ("cpu", "sim"):
        assert results.verdicts.copied == 0, results.verdicts
    base.flags.writeable = True
    binding = session.bind({"x": x})
    binding.run()
    if strided != "Fortran":
        base += 7
    np.testing.assert_array_equal(binding.run()["y"], x + x)
    if strided == "cropped":
        moved = whole_pages(base)[1:-3, 1:-6]
        binding.rebind_input("x", moved)
        np.testing.assert_array_equal(binding.run()["y"], moved * 2)
        for other in (base[:100, 1:], base[3:-1, 5:-2].copy()):
            with pytest.raises(onepool.ShapeError, match='input "x".*strides'):
                binding.rebind_input("x", other)


def test_as_many_strides_as_come(session: onepool.Session) -> None:
    base = np.arange(200 * 300, dtype=np.float32).reshape(200, 300)
    for width in [*range(150, 170), 150]:
        x = base[:, :width]
        results = session.run({"x": x})
        np.testing.assert_array_equal(results["y"], x * 2)
        assert results.verdicts.copied == 0
    # Channels of one picture: each has its strides.
    names = ["r", "g", "b"]
    nodes = [helper.make_node("Sum", names, ["y"])]
    three = onepool.Session(model(nodes, dict.fromkeys(names, (1, ["h", "w"])), {"y": (1, ["h", "w"])}), device="cpu")
    picture = np.random.default_rng(1).random((200, 300, 3), np.float32)
    results = three.run({name: picture[..., c] for c, name in enumerate(names)})
    np.testing.assert_array_equal(results["y"], picture[..., 0] + picture[..., 1] + picture[..., 2])
    assert results.verdicts.copied == 0, results.verdicts


def test_small_strided_inputs_are_copied_and_said_so(session: onepool.Session) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for x in (base.T, base[::-1, ::-1], base[:, ::2], np.broadcast_to(np.float32(7), (3, 5)), np.asfortranarray(base)):
        results = session.run({"x": x})
        np.testing.assert_array_equal(results["y"], x + x)
        row = results.verdicts[0]
        assert (row.tensor, row.path, row.cpu_copied) == ("x", "staged", x.nbytes)
        assert "C-contiguous" in row.reason and row.fix
        assert results.verdicts.copied == x.nbytes
        # Strict mode copies none.
        results = onepool.Session(double(), device="cpu", strict=True).run({"x": x})
        np.testing.assert_array_equal(results["y"], x + x)
        assert results.verdicts.copied == 0
    # A binding copies before each run.
    base = base.copy()
    binding = session.bind({"x": base.T})
    binding.run()
    base[:] = 9
    assert (binding.run()["y"] == 18).all() and binding.verdicts.copied == base.nbytes


def test_strides_that_are_no_whole_elements_are_copied(session: onepool.Session) -> None:
    pixels = np.zeros((300, 200), [("value", np.float32), ("flag", np.uint8)])
    pixels["value"] = np.arange(300 * 200).reshape(300, 200)
    results = session.run({"x": pixels["value"]})
    np.testing.assert_array_equal(results["y"], pixels["value"] * 2)
    assert results.verdicts.copied == pixels["value"].nbytes
    assert "no whole elements" in results.verdicts[0].reason
    with pytest.raises(onepool.StrictError, match='input "x".*strides'):
        session.bind({"x": pixels["value"]}, strict=True)


def cache_model(rows: str | int = 64) -> onnx.ModelProto:
    """Writes rows into a cache, and sums it."""
    nodes = [
        helper.make_node("TensorScatter", ["past", "rows", "at"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present"], ["sum"], keepdims=0),
    ]
    inputs = {"past": (1, [1, rows, 1024]), "rows": (1, [1, "n", 1024]), "at": (TensorProto.INT64, [1])}
    return model(nodes, inputs, {"present": (1, [1, rows, 1024]), "sum": (1, [])}, opset=24)


def test_a_cache_is_updated_in_place(device: str) -> None:
    session = onepool.Session(cache_model(), device=device)
    cache = whole_pages(np.zeros((1, 64, 1024), np.float32))
    rows, at = np.ones((1, 1, 1024), np.float32), np.zeros(1, np.int64)
    with session.bind({"rows": rows, "at": at}, updates={"past": ("present", cache)}) as binding:
        for row in range(3):
            rows[:], at[:] = row + 1, row
            results = binding.run()
            assert results["present"] is cache
            assert (cache[0, row] == row + 1).all() and not cache[0, row + 1 :].any()
            assert results["sum"] == 1024 * sum(range(1, row + 2))
        if device in ("cpu", "sim"):
            caches = [row for row in binding.verdicts if row.tensor in ("past", "present")]
            assert caches and all(row.cpu_copied == 0 for row in caches), binding.verdicts
        other = whole_pages(np.full_like(cache, 2))
        binding.rebind_input("past", other)
        assert binding.run()["present"] is other and binding.outputs["present"] is other
        assert (other[0, 2] == 3).all() and (other[0, 3:] == 2).all() and not cache[0, 3:].any()


def test_updates_that_cannot_be(session: onepool.Session) -> None:
    caching = onepool.Session(cache_model(), device="cpu")
    cache = np.zeros((1, 64, 1024), np.float32)
    given = {"rows": np.ones((1, 1, 1024), np.float32), "at": np.zeros(1, np.int64)}
    frozen = cache.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match='update "past".*read-only'):
        caching.bind(given, updates={"past": ("present", frozen)})
    with pytest.raises(TypeError, match='update "past"'):
        caching.bind(given, updates={"past": cache})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match='update "past".*float32'):
        caching.bind(given, updates={"past": ("present", cache.astype(np.float64))})
    with pytest.raises(ValueError, match="compact"):
        caching.bind(given, updates={"past": ("present", cache[:, ::2])})
    for pair, said in ((("past", "nothing"), "nothing"), (("nothing", "present"), "nothing")):
        with pytest.raises(onepool.Error, match=said):
            caching.bind({**given, "past": cache}, updates={pair[0]: (pair[1], cache)})
    # A matrix product cannot write where it still reads.
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    product = onepool.Session(model(nodes, {"x": (1, [64, 64])}, {"y": (1, [64, 64])}), device="cpu")
    with pytest.raises(onepool.ArgumentError, match='"x"'):
        product.bind({}, updates={"x": ("y", np.zeros((64, 64), np.float32))})


def test_sizes_of_one_and_none_have_no_strides_to_speak_of(session: onepool.Session) -> None:
    x = np.ones((8, 4), np.float32)[::4, :][:1]
    assert session.run({"x": x}).verdicts.copied == 0
    for shape in ((0, 4), (4, 0), (0, 0)):
        y = session.run({"x": np.zeros(shape, np.float32)})["y"]
        assert y.shape == shape


def test_scalars() -> None:
    session = onepool.Session(double(shape=()), device="cpu")
    for x in (np.array(3, np.float32), np.float32(3), memoryview(np.array(3, np.float32))):
        y = session.run({"x": x})["y"]
        assert y.shape == () and y == 6
    out = np.zeros((), np.float32)
    session.run({"x": np.float32(4)}, {"y": out})
    assert out == 8
    with pytest.raises(ValueError, match='output "y".*read-only'):
        session.run({"x": np.float32(4)}, {"y": np.float32(0)})


TYPES = ["float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("name", TYPES)
def test_element_types_of_numpy(name: str) -> None:
    dtype = np.dtype(name)
    session = onepool.Session(double(helper.np_dtype_to_tensor_dtype(dtype)), device="cpu")
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    y = session.run({"x": x})["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x + x)
    # In another spelling of the buffer protocol.
    np.testing.assert_array_equal(session.run({"x": memoryview(x)})["y"], x + x)


def test_booleans() -> None:
    made = model([helper.make_node("Not", ["x"], ["y"])], {"x": (TensorProto.BOOL, ["n"])}, {"y": (TensorProto.BOOL, ["n"])})
    x = np.array([True, False, True])
    y = onepool.Session(made, device="cpu").run({"x": x})["y"]
    assert y.dtype == np.bool_
    np.testing.assert_array_equal(y, ~x)


NARROW = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4", "float4_e2m1fn"]


@pytest.mark.parametrize("name", NARROW)
def test_element_types_of_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    number = helper.np_dtype_to_tensor_dtype(dtype)
    cast = model([helper.make_node("Cast", ["x"], ["y"], to=number)], {"x": (1, ["n"])}, {"y": (number, ["n"])})
    back = model([helper.make_node("Cast", ["x"], ["y"], to=1)], {"x": (number, ["n"])}, {"y": (1, ["n"])})
    x = np.array([0, 1, 2, 3, 6] + ([] if name == "uint4" else [-1, -2, -4]), np.float32)
    y = onepool.Session(cast, device="cpu").run({"x": x})["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.astype(np.float32), x)
    results = onepool.Session(back, device="cpu").run({"x": x.astype(dtype)})
    np.testing.assert_array_equal(results["y"], x)
    assert results.verdicts.copied == 0


def test_without_ml_dtypes_the_error_says_so(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(double(TensorProto.BFLOAT16, (2,)), path)
    program = f"""
import sys
sys.modules["ml_dtypes"] = None
import onepool
session = onepool.Session({str(path)!r}, device="cpu")
x, out = onepool.Tensor((2,), "bfloat16"), onepool.Tensor((2,), "bfloat16")
assert session.run({{"x": x}}, {{"y": out}})["y"] is out
try:
    session.run({{"x": x}})
except onepool.DTypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "install the package ml_dtypes" in done.stdout, done.stderr


def test_outputs_whose_size_the_run_tells() -> None:
    made = model([helper.make_node("NonZero", ["x"], ["y"])], {"x": (1, ["n"])}, {"y": (TensorProto.INT64, [1, "k"])})
    session = onepool.Session(made, device="cpu")
    binding = session.bind({"x": (x := np.array([0, 1, 0, 2], np.float32))})
    np.testing.assert_array_equal(binding.run()["y"], [[1, 3]])
    x[:] = [1, 1, 1, 0]
    np.testing.assert_array_equal(binding.run()["y"], [[0, 1, 2]])
    with pytest.raises(onepool.ShapeError, match='output "y"'):
        session.run({"x": x}, {"y": np.zeros((3, 1), np.int64)})
    out = np.zeros((1, 3), np.int64)
    np.testing.assert_array_equal(session.run({"x": x}, {"y": out})["y"], [[0, 1, 2]])


def test_arrays_live_as_long_as_the_binding(session: onepool.Session) -> None:
    class Watched(np.ndarray):
        pass

    x = np.ones((64, 64), np.float32).view(Watched)
    gone = weakref.ref(x)
    binding = session.bind({"x": x})
    del x
    gc.collect()
    assert gone() is not None and (binding.run()["y"] == 2).all()
    binding.close()
    gc.collect()
    assert gone() is None


def test_memory_that_is_bound_cannot_be_resized(session: onepool.Session) -> None:
    one = onepool.Session(double(TensorProto.UINT8, ("n",)), device="cpu")
    data = bytearray(b"\x01\x02\x03")
    binding = one.bind({"x": data})
    with pytest.raises(BufferError):
        data.append(4)
    np.testing.assert_array_equal(binding.run()["y"], [2, 4, 6])
    binding.close()
    data.append(4)
    np.testing.assert_array_equal(one.run({"x": data})["y"], [2, 4, 6, 8])
    data.append(5)


def test_other_threads_run_meanwhile() -> None:
    session = onepool.Session(conv(), device="cpu", threads=1)
    x = np.ones((1, 8, 128, 128), np.float32)
    counted = 0
    over = threading.Event()

    def count() -> None:
        nonlocal counted
        while not over.is_set():
            counted += 1

    binding = session.bind({"x": x})
    binding.run()
    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    binding.run()
    during = counted - before
    over.set()
    thread.join()
    assert during > 1000, "the interpreter was held"


def test_threads_share_a_session(session: onepool.Session) -> None:
    wrong: list[object] = []

    def work(value: int) -> None:
        for i in range(50):
            x = np.full((value + 1, 8), value * 100 + i, np.float32)
            if not (session.run({"x": x})["y"] == 2 * x).all():
                wrong.append((value, i))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
