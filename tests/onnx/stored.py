#!/usr/bin/env python3
"""Writes the light models with their weights as a model has them: stored, not made by ConstantOfShape in each run.

  stored.py LIGHT OUT

OUT/<name>/ gets model.onnx and the case's first data set. All weights are zeros of one sparse file: good for plans, not
for results.
"""
import argparse
import os
import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper


def stored(model, zeros):
    """The model with an initializer in place of each constant that it makes, and the bytes of the file."""
    graph = model.graph
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    made = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in shapes]
    end = 0
    for node in made:
        dims = numpy_helper.to_array(shapes[node.input[0]]).tolist()
        kind = next((a.t.data_type for a in node.attribute if a.name == "value"), TensorProto.FLOAT)
        weight = TensorProto(name=node.output[0], dims=dims, data_type=kind, data_location=TensorProto.EXTERNAL)
        length = helper.tensor_dtype_to_np_dtype(kind).itemsize
        for size in dims:
            length *= size
        for key, value in [("location", zeros), ("offset", str(end)), ("length", str(length))]:
            weight.external_data.add(key=key, value=value)
        end += length
        graph.node.remove(node)
        graph.initializer.append(weight)
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("light", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    for case in sorted(args.light.glob("test_*")):
        model = onnx.load(case / "model.onnx")
        folder = args.out / case.name.removeprefix("test_")
        shutil.copytree(case / "test_data_set_0", folder / "test_data_set_0")
        total = stored(model, "zeros.bin")
        onnx.save(model, folder / "model.onnx")
        with open(folder / "zeros.bin", "wb") as file:
            os.truncate(file.fileno(), total)


main()
