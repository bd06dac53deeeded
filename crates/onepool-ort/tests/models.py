"""Whole models through the provider, with no node left to onnxruntime's.

    python models.py FOLDER... [--device cpu] [--least N]

A case is a folder with `model.onnx` and `test_data_set_*`, or a folder NAME with such beside NAME.onnx; folders are searched
for them. Results are compared as `meta.json` says, else within 1e-3, relative and of the largest value.
"""

import argparse
import json
import pathlib
import sys

import numpy as np
import onnx
from onnx import numpy_helper

import provider


def cases(root):
    """Name, model, and folders of data."""
    for case in sorted({data.parent for data in root.rglob("test_data_set_*")}):
        beside = case.parent / (case.name + ".onnx")
        model = case / "model.onnx" if (case / "model.onnx").exists() else beside
        if model.exists():
            yield str(case.relative_to(root)), model, sorted(case.glob("test_data_set_*"))


def values(data, kind):
    files = sorted(data.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


def tolerances(folder):
    said = json.loads((folder / "meta.json").read_text()) if (folder / "meta.json").exists() else {}
    return float(said.get("rtol", 1e-3)), float(said.get("atol", 0))


def compare(got, wanted, rtol, atol):
    assert len(got) == len(wanted), f"{len(got)} outputs, not {len(wanted)}"
    for i, (one, other) in enumerate(zip(got, wanted)):
        assert one.shape == other.shape, f"output {i} has shape {one.shape}, not {other.shape}"
        if other.size == 0:
            continue
        if other.dtype.kind != "f":
            assert np.array_equal(one, other), f"output {i} differs"
            continue
        room = max(atol, rtol * float(np.abs(other).max()))
        off = float(np.abs(one.astype(np.float64) - other).max())
        assert off <= room + 1e-6, f"output {i} is off by {off}, and {room} is allowed"


def run(model, sets, device):
    """Parts, nodes and bytes copied."""
    before = provider.stats()
    session = provider.session(str(model), {"device": device})
    rtol, atol = tolerances(model.parent)
    for data in sets:
        feeds = dict(zip((i.name for i in session.get_inputs()), values(data, "input")))
        compare(session.run(None, feeds), values(data, "output"), rtol, atol)
    moved = provider.stats() - before
    assert moved.runs >= len(sets), "the provider ran nothing"
    if device == "cpu":
        assert moved.bytes_copied == 0, f"{moved.bytes_copied} bytes were copied"
    return moved


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folders", nargs="+", type=pathlib.Path)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--least", type=int, default=1)
    asked = arguments.parse_args()
    passed = failed = 0
    for root in asked.folders:
        for name, model, sets in cases(root):
            try:
                moved = run(model, sets, asked.device)
                passed += 1
                print(f"pass {name}: {moved.nodes} nodes in {moved.parts} parts, {len(sets)} data sets", flush=True)
            except Exception as error:
                failed += 1
                print(f"fail {name}: {type(error).__name__}: {error}"[:400], flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0 or passed < asked.least)


if __name__ == "__main__":
    main()
