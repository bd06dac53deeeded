"""A program whose types mypy checks (`scripts/test`); each line also has to be right when it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import assert_type

import numpy as np
import onnx
from onnx import helper

import onepool
import onepool.backend
from onepool.generate import BatchCounts, Embedded, Embedder, Generated, Generator


def double() -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", info[:1], info[1:])
    return helper.make_model(graph, ir_version=10)


def main() -> None:
    with onepool.Session(double(), device=["cpu"], precision="f32") as session:
        x = onepool.empty((2,))
        x[:] = 2
        results = session.run({"x": x}, time_limit=10.0, cancel=onepool.Cancel())
        assert_type(results, onepool.Outputs)
        verdict = results.verdicts[0]
        assert_type(verdict, onepool.Verdict)
        assert_type(verdict.fix, str | None)
        assert_type(session.inputs[0].name, str)
        assert_type(session.metadata, onepool.Metadata)
        assert_type(session.get_modelmeta().custom_metadata_map, dict[str, str])
        awaited = asyncio.run(session.run_async({"x": x}))
        assert_type(awaited, onepool.Outputs)
        with session.bind({"x": x}, {"y": np.zeros(2, np.float32)}, strict=False) as binding:
            assert_type(binding, onepool.Binding)
            binding.run(time_limit=1.0)
            assert_type(binding.plan, onepool.Plan)
            assert binding.profile().report["host_nanos"] > 0
    picture = np.zeros((4, 6, 4), np.uint8)
    frame = onepool.Frame.of(picture, "rgba8")
    assert_type(frame, onepool.Frame)
    assert (frame.width, frame.height) == (6, 4)
    model = Path(__file__).parents[2] / "models/tiny_llm/fixed"
    assert_type(Embedder(model.parents[1] / "tiny_seq2seq/vectors", device="cpu").embed("Hello"), Embedded)
    generator = Generator(model, device="cpu", context=64)
    with generator.stream([1, 78], max_tokens=3, temperature=0.5, ignore_end=True) as text:
        for piece in text:
            assert_type(piece, str)
    assert_type(text.result(), Generated)
    made = generator.generate([{"role": "user", "content": "Hello"}], max_tokens=2, stop="x")
    assert_type(made.tokens, list[int])
    with generator.batch(texts=2) as batch:
        assert_type(batch.add("Hello", max_tokens=2, json_schema={"enum": [7]}, on_piece=str), int)
        assert_type(batch.step(), list[tuple[int, Generated]])
        assert_type(dict(batch), dict[int, Generated])
        assert_type(batch.counts, BatchCounts)
    assert_type(generator.generate_all(["Hello"], regex="ab"), list[Generated])
    tensor = onepool.Tensor((2, 3), "float16")
    assert_type(tensor.shape, tuple[int, ...])
    assert_type(onepool.devices(), onepool.Devices)
    outputs = onepool.backend.prepare(double()).run([x])
    assert outputs[0].tolist() == [4.0, 4.0]
    try:
        onepool.Session(b"", device="cpu")
    except onepool.ModelError as error:
        assert_type(error, onepool.ModelError)


if __name__ == "__main__":
    main()
