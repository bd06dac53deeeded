"""Tensors of the package, DLPack and the buffer protocol both ways, and arrays of other libraries."""

from __future__ import annotations

import array
import gc
import os
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import double, model, whole_pages
from onnx import TensorProto, helper
from PIL import Image

import onepool


class Dlpack:
    """What has DLPack alone."""

    def __init__(self, tensor: Any, *, legacy: bool = False, device: tuple[int, int] = (1, 0)) -> None:
        self.tensor, self.legacy, self.device, self.made = tensor, legacy, device, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.legacy and keywords:
            raise TypeError("unexpected keyword argument")
        self.made += 1
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_a_tensor_is_seen_by_all() -> None:
    tensor = onepool.Tensor((2, 3), "float32")
    assert (tensor.shape, tensor.dtype, tensor.nbytes) == ((2, 3), "float32", 24)
    assert "float32" in repr(tensor)
    seen = tensor.numpy()
    assert seen.ctypes.data % 4096 == 0 and not seen.any()
    for other in (np.asarray(tensor), np.from_dlpack(tensor), np.asarray(memoryview(tensor))):
        assert other.ctypes.data == seen.ctypes.data and other.shape == (2, 3) and other.dtype == np.float32
    seen[:] = 4
    copied = np.from_dlpack(tensor, copy=True)
    seen[:] = 5
    assert (copied == 4).all() and (np.asarray(tensor) == 5).all()
    del tensor, other
    gc.collect()
    assert (seen == 5).all(), "the array keeps the pages"


@pytest.mark.parametrize("legacy", [False, True])
def test_a_capsule_that_no_one_takes_is_freed(legacy: bool) -> None:
    tensor = onepool.Tensor((1 << 20,), "uint8")
    for _ in range(2000):
        capsule = tensor.__dlpack__() if legacy else tensor.__dlpack__(max_version=(1, 0))
        del capsule
        np.from_dlpack(tensor)
    with pytest.raises(ValueError, match="stream"):
        tensor.__dlpack__(stream=1)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="dl_device"):
        tensor.__dlpack__(dl_device=(2, 0))
    assert tensor.__dlpack_device__() == (1, 0)


def test_tensors_as_inputs_and_outputs(device: str) -> None:
    session = onepool.Session(double(), device=device, strict=True)
    x, y = onepool.Tensor((512, 512)), onepool.Tensor((512, 512))
    x.numpy()[:] = 3
    results = session.run({"x": x}, {"y": y})
    assert results["y"] is y and (y.numpy() == 6).all() and results.verdicts.copied == 0
    assert (session.run({"x": onepool.empty((512, 512))})["y"] == 0).all()


def test_buffers_of_types_that_the_protocol_has_not() -> None:
    tensor = onepool.Tensor((3,), "bfloat16")
    with pytest.raises(BufferError, match="bfloat16"):
        memoryview(tensor)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert tensor.numpy().dtype == ml_dtypes.bfloat16


def test_dlpack_in(session: onepool.Session) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (Dlpack(x), Dlpack(onepool.Tensor((2, 3))), Dlpack(x, legacy=True)):
        results = session.run({"x": given})
        np.testing.assert_array_equal(results["y"], np.from_dlpack(given) * 2)
        assert results.verdicts.copied == 0 and given.made >= 1
    y = np.zeros((2, 3), np.float32)
    given = Dlpack(y)
    assert session.run({"x": x}, {"y": given})["y"] is given
    np.testing.assert_array_equal(y, x * 2)
    # Strided: through NumPy, by a copy.
    results = session.run({"x": Dlpack(x.T)})
    np.testing.assert_array_equal(results["y"], x.T * 2)
    assert results.verdicts.copied == x.nbytes


def test_dlpack_that_cannot_be_used(session: onepool.Session) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(TypeError, match='input "x".*device type 2'):
        session.run({"x": Dlpack(x, device=(2, 0))})
    with pytest.raises(ValueError, match='output "y".*read-only'):
        session.run({"x": x}, {"y": Dlpack(x.copy(), legacy=True)})
    frozen = x.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match='output "y".*read-only'):
        session.run({"x": x}, {"y": Dlpack(frozen)})
    assert (frozen == 1).all()
    np.testing.assert_array_equal(session.run({"x": Dlpack(frozen)})["y"], x * 2)

    class Wrong:
        def __init__(self, made: Any) -> None:
            self.made = made

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            if isinstance(self.made, Exception):
                raise self.made
            return self.made

    used = np.ones(3, np.float32).__dlpack__()
    np.from_dlpack(Wrong(used))
    for made in (None, 3, used, RuntimeError("no")):
        with pytest.raises(TypeError, match='input "x".*DLPack'):
            session.run({"x": Wrong(made)})


def test_dlpack_is_given_back(session: onepool.Session) -> None:
    import weakref

    class Watched(np.ndarray[Any, Any]):
        pass

    x = np.ones((2, 3), np.float32).view(Watched)
    gone = weakref.ref(x)
    binding = session.bind({"x": Dlpack(x)})
    del x
    gc.collect()
    assert gone() is not None and (binding.run()["y"] == 2).all()
    binding.close()
    gc.collect()
    assert gone() is None
    for bad in (np.ones((2, 3)), np.ones((3,), np.float32)):
        watched = bad.view(Watched)
        gone = weakref.ref(watched)
        with pytest.raises(onepool.Error):
            session.bind({"x": Dlpack(watched)})
        del watched
        gc.collect()
        assert gone() is None, "also after an error"


def test_arrays_of_python(session: onepool.Session) -> None:
    flat = onepool.Session(double(shape=("n",)), device="cpu")
    x = array.array("f", [1, 2, 3])
    y = array.array("f", [0, 0, 0])
    assert flat.run({"x": x}, {"y": y}).verdicts.copied == 0
    assert list(y) == [2, 4, 6]
    binding = flat.bind({"x": x})
    with pytest.raises(BufferError):
        x.append(4)
    binding.close()
    x.append(4)


def test_pillow() -> None:
    """A picture is inverted; its bytes come in as Pillow has them."""
    made = model(
        [helper.make_node("Sub", ["white", "picture"], ["inverted"])],
        {"white": (TensorProto.UINT8, []), "picture": (TensorProto.UINT8, ["h", "w", 3])},
        {"inverted": (TensorProto.UINT8, ["h", "w", 3])},
    )
    picture = Image.effect_noise((64, 48), 50).convert("RGB")
    session = onepool.Session(made, device="cpu")
    out = session.run({"white": np.uint8(255), "picture": picture})["inverted"]
    assert out.shape == (48, 64, 3)
    np.testing.assert_array_equal(out, 255 - np.asarray(picture))
    assert Image.fromarray(out).getpixel((3, 4)) == tuple(255 - c for c in picture.getpixel((3, 4)))


def test_pandas() -> None:
    frame = pd.DataFrame({"a": np.arange(5, dtype=np.float32), "b": np.ones(5, np.float32)})
    flat = onepool.Session(double(shape=("n",)), device="cpu")
    results = flat.run({"x": frame["a"]})
    np.testing.assert_array_equal(results["y"], frame["a"] * 2)
    session = onepool.Session(double(), device="cpu")
    np.testing.assert_array_equal(session.run({"x": frame})["y"], frame * 2)
    with pytest.raises(TypeError, match='input "x"'):
        flat.run({"x": pd.Series(["a", "b"])})
    with pytest.raises(ValueError, match='output "y".*read-only'):
        flat.run({"x": frame["a"]}, {"y": frame["b"]})


def test_torch() -> None:
    if os.environ.get("ONEPOOL_TEST_TORCH") != "1":
        pytest.skip("PyTorch is several GB: `scripts/test doors` has it")
    import torch

    session = onepool.Session(double(), device="cpu", strict=True)
    x, y = torch.arange(6, dtype=torch.float32).reshape(2, 3), torch.zeros(2, 3)
    assert session.run({"x": x}, {"y": y})["y"] is y
    assert torch.equal(y, x * 2)
    tensor = onepool.Tensor((2, 3))
    session.run({"x": x}, {"y": tensor})
    seen = torch.from_dlpack(tensor)
    assert torch.equal(seen, y) and seen.data_ptr() == tensor.numpy().ctypes.data
    half = onepool.Session(double(TensorProto.BFLOAT16), device="cpu", strict=True)
    b = torch.ones(2, 3, dtype=torch.bfloat16)
    out = torch.zeros(2, 3, dtype=torch.bfloat16)
    half.run({"x": b}, {"y": out})
    assert torch.equal(out, b * 2)
    with pytest.raises(TypeError, match='input "x".*gradient'):
        session.run({"x": torch.ones(2, 3, requires_grad=True)})


def test_arrays_that_share_a_page_are_told_of(device: str) -> None:
    whole = whole_pages(np.ones((2, 512, 511), np.float32))
    session = onepool.Session(double(), device=device)
    results = session.run({"x": whole[0]}, {"y": whole[1]})
    assert (whole[0] == 1).all() and (whole[1] == 2).all()
    rows = {row.tensor: row for row in results.verdicts}
    assert all(row.reason for row in rows.values()) and rows["x"].cpu_copied == 0
