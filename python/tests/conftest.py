"""Models and devices of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onepool

# Verdicts are compared, and costs that are measured depend on what else the machine does. Read at first use.
os.environ.setdefault("ONEPOOL_IMPORT_COSTS", "preset")
DEVICES = os.environ.get("REQUIRE_BACKENDS", "cpu,sim,vulkan,opencl").split(",")


def model(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any], opset: int = 21) -> onnx.ModelProto:
    """A model; inputs and outputs are pairs of element type and sizes by name."""

    def infos(ios: dict[str, Any]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, *io) for name, io in ios.items()]

    graph = helper.make_graph(nodes, "test", infos(inputs), infos(outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def double(dtype: int = TensorProto.FLOAT, shape: tuple[Any, ...] = ("n", "m")) -> onnx.ModelProto:
    """y = x + x"""
    return model([helper.make_node("Add", ["x", "x"], ["y"])], {"x": (dtype, shape)}, {"y": (dtype, shape)})


def conv(channels: int = 8) -> onnx.ModelProto:
    """A convolution with itself, often: a run that takes a while."""
    nodes = [
        helper.make_node("Conv", ["x" if i == 0 else f"t{i}", "w"], ["y" if i == 39 else f"t{i + 1}"], pads=[1, 1, 1, 1])
        for i in range(40)
    ]
    made = model(nodes, {"x": (1, (1, channels, "h", "w"))}, {"y": (1, (1, channels, "h", "w"))})
    weights = np.full((channels, channels, 3, 3), 0.01, np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device; one that is missing fails."""
    return str(request.param)


@pytest.fixture
def session() -> Iterator[onepool.Session]:
    """x + x on the CPU."""
    with onepool.Session(double(), device="cpu") as session:
        yield session


@pytest.fixture
def frame() -> Callable[[], np.ndarray[Any, Any]]:
    """Large enough to be worth an import."""
    return lambda: whole_pages(np.arange(512 * 512, dtype=np.float32).reshape(512, 512))


def whole_pages(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that shares no page with another array."""
    room = np.empty(values.nbytes + 8192, np.uint8)
    start = -room.ctypes.data % 4096
    array = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array
