#!/usr/bin/env python3
"""Writes the ONNX backend suite of the installed `onnx` package as case folders.

  cases.py OUT [--ops Conv,Relu,...]

Each case is OUT/<kind>/<name>/ with model.onnx, test_data_set_*/{input,output}_*.pb and meta.json
(op, kind, expanded, dtypes, rtol, atol, random). OUT/index.json lists them. With --ops only the cases
whose tested operator is named, and of the model kinds those that use no other, are written.
"""
import argparse
import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

warnings.simplefilter("ignore")

# Their values are random by definition: only type and shape can be compared.
RANDOM = re.compile(r"test_(bernoulli|random(normal|uniform)|multinomial|training_dropout(?!_zero_ratio))")
RENAMED = {"float": "float32", "double": "float64"}
# Operators that only carry data to the one under test.
CARRIERS = {"Constant", "Identity", "Cast", "Shape"}


def value_bytes(value, info):
    """The .pb form of a test value, as the type of its graph input or output asks for."""
    kind = info.type.WhichOneof("value")
    if isinstance(value, TensorProto):
        return value.SerializeToString()
    convert = {
        "sequence_type": numpy_helper.from_list,
        "optional_type": numpy_helper.from_optional,
        "map_type": numpy_helper.from_dict,
    }.get(kind)
    if convert:
        return convert(value, info.name).SerializeToString()
    return numpy_helper.from_array(np.asarray(value), info.name).SerializeToString()


def dtypes(model):
    found = set()
    for info in [*model.graph.input, *model.graph.output]:
        kind = info.type.WhichOneof("value")
        if kind == "tensor_type":
            name = TensorProto.DataType.Name(info.type.tensor_type.elem_type).lower()
            kind = RENAMED.get(name, name)
        found.add(kind)
    return sorted(found)


def operators(graph):
    for node in graph.node:
        yield f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for attribute in node.attribute:
            for sub in [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []:
                yield from operators(sub)


class Writer:
    def __init__(self, out, only):
        self.out, self.only, self.index, self.tested = Path(out), only, [], {}

    def wanted(self, op, ops):
        return not self.only or (op in self.only | {""} and set(ops) <= self.only | CARRIERS)

    def write(self, kind, case, model, op, expanded, fill):
        ops = list(operators(model.graph))
        if not self.wanted(op, ops) and not (expanded and not self.only):
            return
        folder = self.out / kind / case.name
        folder.mkdir(parents=True)
        fill(folder)
        meta = dict(
            name=case.name, kind=kind, dir=str(folder.relative_to(self.out)), op=op, expanded=expanded,
            dtypes=dtypes(model), ops=sorted(set(ops)), rtol=case.rtol, atol=case.atol,
            random=bool(RANDOM.match(case.name)),
        )
        (folder / "meta.json").write_text(json.dumps(meta))
        self.index.append(meta)

    def node_cases(self):
        for case in load_model_tests(kind="node"):
            base = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
            expanded = base != case.name
            if not expanded:
                self.tested[base] = case.model.graph.node[0].op_type
            op = self.tested.get(base, case.model.graph.node[0].op_type)

            def fill(folder, case=case):
                (folder / "model.onnx").write_bytes(case.model.SerializeToString())
                for i, (inputs, outputs) in enumerate(case.data_sets):
                    data = folder / f"test_data_set_{i}"
                    data.mkdir()
                    for word, values, infos in (
                        ("input", inputs, case.model.graph.input),
                        ("output", outputs, case.model.graph.output),
                    ):
                        for j, value in enumerate(values):
                            (data / f"{word}_{j}.pb").write_bytes(value_bytes(value, infos[j]))

            self.write("node", case, case.model, op, expanded, fill)

    def model_cases(self):
        for kind in ("simple", "pytorch-converted", "pytorch-operator"):
            for case in load_model_tests(kind=kind):
                model = onnx.load(Path(case.model_dir) / "model.onnx", load_external_data=False)
                ops = [op for op in operators(model.graph) if op not in CARRIERS]
                copy = lambda folder, case=case: shutil.copytree(case.model_dir, folder, dirs_exist_ok=True)
                self.write(kind, case, model, ops[0] if ops else "Identity", False, copy)

    def light_cases(self):
        """Whole networks with constant weights, whose outputs the package holds."""
        from onnx.backend.test.loader import DATA_DIR

        for case in load_model_tests(kind="real"):
            source = Path(DATA_DIR) / "light" / Path(case.url).name
            model = onnx.load(source)
            constants = {i.name for i in model.graph.initializer}

            def fill(folder):
                shutil.copy(source, folder / "model.onnx")
                data = folder / "test_data_set_0"
                data.mkdir()
                free = [i for i in model.graph.input if i.name not in constants]
                for j, info in enumerate(free):
                    shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
                    count = int(np.prod(shape))
                    value = (np.arange(count).reshape(shape) / count).astype(np.float32)
                    (data / f"input_{j}.pb").write_bytes(value_bytes(value, info))
                for j, path in enumerate(sorted(source.parent.glob(f"{source.stem}_output_*.pb"))):
                    shutil.copy(path, data / f"output_{j}.pb")

            self.write("light", case, model, "", False, fill)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--ops", default="")
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    np.random.seed(0)
    writer = Writer(args.out, set(filter(None, args.ops.split(","))))
    writer.node_cases()
    writer.model_cases()
    writer.light_cases()
    Path(args.out, "index.json").write_text(json.dumps(dict(onnx=onnx.__version__, cases=writer.index)))
    print(f"{len(writer.index)} cases of onnx {onnx.__version__} in {args.out}")


if __name__ == "__main__":
    main()
