"""Pictures in memory as inputs and outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from conftest import model, whole_pages
from onnx import TensorProto, helper

import onepool
from onepool import Frame

# Of the tensor that `nv12` becomes as bytes of RGB; tests/frames/doors.rs has the same.
NV12_HASH = 0xC019C2A4CA55EC40


def passing(shape: tuple[Any, ...], dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
    """Passes its picture on."""
    node = helper.make_node("Identity", ["image"], ["result"])
    return model([node], {"image": (dtype, shape)}, {"result": (dtype, shape)})


def nv12(width: int = 320, height: int = 180, stride: int = 384) -> np.ndarray[Any, Any]:
    """Luma and chroma in rows of `stride` bytes."""
    at = np.arange(height * 3 // 2 * stride, dtype=np.uint64)
    return whole_pages((at * 2654435761 >> np.uint64(7)).astype(np.uint8).reshape(-1, stride))


def fnv(values: np.ndarray[Any, Any]) -> int:
    found = 0xCBF29CE484222325
    for byte in values.tobytes():
        found = (found ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return found


def test_pixels_are_read_where_they_lie(device: str) -> None:
    screen = whole_pages(np.random.default_rng(1).integers(0, 256, (480, 640, 4), np.uint8))
    window = screen[100:400, 200:520]
    frame = Frame.of(window, "bgra8")
    assert (frame.width, frame.height, list(frame.strides or [])) == (320, 300, [2560])
    session = onepool.Session(passing((1, 3, 300, 320)), device=device, input_frames={"image": frame})
    assert session.inputs[0].name == "image" and session.inputs[0].dtype == "uint8"
    with session.bind({"image": window}) as binding:
        result = binding.run()["result"]
        np.testing.assert_array_equal(result[0].transpose(1, 2, 0), window[..., 2::-1])
        if device in ("cpu", "sim"):
            assert binding.verdicts.copied == 0, binding.verdicts
        # Another window of the screen.
        other = screen[0:300, 0:320]
        binding.rebind_input("image", other)
        np.testing.assert_array_equal(binding.run()["result"][0].transpose(1, 2, 0), other[..., 2::-1])
    screen.flags.writeable = False
    assert session.run({"image": window})["result"].shape == (1, 3, 300, 320)


def test_planes_in_one_and_in_several_arrays(device: str) -> None:
    whole = nv12()
    one = Frame(format="nv12", width=320, height=180, strides=[384, 384], matrix="bt601", range="full")
    session = onepool.Session(passing((1, 3, 180, 320)), device=device, input_frames={"image": one})
    result = session.run({"image": whole})["result"]
    assert fnv(result) == NV12_HASH, hex(fnv(result))
    planes = [whole_pages(whole[:180])[:, :320], whole_pages(whole[180:])[:, :320].reshape(90, 160, 2)]
    several = Frame.of(planes, "nv12", matrix="bt601", range="full")
    assert list(several.memories or []) == [0, 1]
    made = passing((1, 3, 180, 320))
    session = onepool.Session(made, device=device, input_frames={"image": several}, copy_threshold=0)
    assert [io.name for io in session.inputs] == ["image:0", "image:1"]
    binding = session.bind({"image": planes})
    np.testing.assert_array_equal(binding.run()["result"], result)
    if device in ("cpu", "sim"):
        assert len(binding.verdicts) >= 2 and binding.verdicts.copied == 0, binding.verdicts
    for plane in planes:
        plane[:] = 128
    assert (np.ptp(binding.run()["result"], axis=(0, 2, 3)) == 0).all()
    binding.rebind_input("image", [whole_pages(whole[:180])[:, :320], whole_pages(whole[180:])[:, :320]])
    np.testing.assert_array_equal(binding.run()["result"], result)


def test_a_result_is_written_into_a_part_of_a_picture(device: str) -> None:
    image = whole_pages(np.random.default_rng(2).integers(0, 256, (1, 180, 320, 3), np.uint8))
    screen = whole_pages(np.full((480, 640, 4), 7, np.uint8))
    window = screen[60:240, 40:360]
    frame = Frame.of(window, "rgba8", layout="nhwc")
    session = onepool.Session(passing((1, 180, 320, 3)), device=device, output_frames={"result": frame})
    binding = session.bind({"image": image}, {"result": window})
    assert binding.run()["result"] is window
    np.testing.assert_array_equal(window[..., :3], image[0])
    assert (window[..., 3] == 255).all()
    window[:] = 7
    assert (screen == 7).all(), "nothing around it was written"
    other = whole_pages(np.zeros((480, 640, 4), np.uint8))[0:180, 0:320]
    binding.rebind_output("result", other)
    assert binding.run()["result"] is other and binding.outputs["result"] is other
    np.testing.assert_array_equal(other[..., :3], image[0])
    # Bytes of the package's own.
    assert session.run({"image": image})["result"].dtype == np.uint8


def test_numbers_crop_and_scale() -> None:
    picture = np.random.default_rng(3).integers(0, 256, (64, 96, 3), np.uint8)
    settings: dict[str, Any] = {"mean": [0.5, 0.25, 0.125], "std": 0.5}
    frame = Frame.of(picture, "rgb8", crop=(32, 16, 48, 32), **settings, channels="bgr")
    session = onepool.Session(passing((1, 3, "h", "w"), TensorProto.FLOAT), device="cpu", input_frames={"image": frame})
    result = session.run({"image": picture})["result"]
    assert result.shape == (1, 3, 32, 48)
    part = picture[16:48, 32:80, ::-1].astype(np.float32).transpose(2, 0, 1)
    mean = np.array(settings["mean"], np.float32).reshape(3, 1, 1)
    np.testing.assert_allclose(result[0], (part / 255 - mean) / 0.5, atol=1e-5)
    half = Frame.of(picture, "rgb8", size=(48, 32), filter="nearest", scale=1.0)
    session = onepool.Session(passing((1, 3, "h", "w"), TensorProto.FLOAT), device="cpu", input_frames={"image": half})
    np.testing.assert_array_equal(session.run({"image": picture})["result"][0], picture[1::2, 1::2].transpose(2, 0, 1))


def test_frames_that_do_not_fit() -> None:
    picture = np.zeros((64, 96, 4), np.uint8)
    frame = Frame.of(picture, "rgba8")
    made = passing((1, 3, 64, 96))
    session = onepool.Session(made, device="cpu", input_frames={"image": frame})
    for wrong, said in (
        (picture[:, :90], "bytes"),
        (np.zeros((64, 100, 4), np.uint8)[:, :96], "rows are 400 bytes apart"),
        (picture[:32], "bytes"),
        (picture[::2], "bytes apart|bytes, and"),
        (picture[::-1], "top to bottom"),
        (picture[:, ::2], "compact"),
        ([picture, picture], "1 memories, got 2"),
    ):
        with pytest.raises(onepool.ShapeError, match=f'input "image".*({said})'):
            session.bind({"image": wrong})
    with pytest.raises(onepool.UnboundError, match="image"):
        session.run({})
    out = onepool.Session(made, device="cpu", output_frames={"result": frame})
    picture.flags.writeable = False
    with pytest.raises(onepool.ArgumentError, match='output "result".*read-only'):
        out.run({"image": np.zeros((1, 3, 64, 96), np.uint8)}, {"result": picture})
    with pytest.raises(onepool.Error, match="nothing"):
        onepool.Session(made, device="cpu", input_frames={"nothing": frame})
    for bad, said in (
        ({"format": "rgb9"}, "format"),
        ({"width": 0}, "0 x 64|0 pixels|width"),
        ({"width": -1}, "width"),
        ({"strides": [8]}, "8"),
        ({"strides": [400, 400]}, "strides"),
        ({"matrix": "bt1"}, "matrix"),
        ({"crop": (90, 0, 10, 10)}, "90"),
        ({"crop": (1, 2)}, "crop"),
        ({"scale": float("nan")}, "scale"),
        ({"mean": "x"}, "mean"),
    ):
        with pytest.raises(onepool.Error, match=said):
            changed = {"format": "rgba8", "width": 96, "height": 64, **bad}
            onepool.Session(made, device="cpu", input_frames={"image": Frame(**changed)})
    with pytest.raises(TypeError, match="onepool.Frame"):
        onepool.Session(made, device="cpu", input_frames={"image": picture})  # type: ignore[dict-item]
    for planes, format, said in (
        ([picture], "nv12", "has 2"),
        (picture[0, 0], "rgba8", "rows"),
        (picture[:, :3, :3], "rgba8", "whole pixels"),
        (picture, "rgb9", "none of"),
    ):
        with pytest.raises(ValueError, match=said):
            Frame.of(planes, format)  # type: ignore[arg-type]
