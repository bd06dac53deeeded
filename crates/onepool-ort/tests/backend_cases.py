"""ONNX's own cases through the provider, with no node left to onnxruntime's: counts those that pass.

    python backend_cases.py [--device cpu] [--filter TEXT] [--least N] [--report FILE]

Tolerances are those of the cases, and never below what the type of a result can hold. Of cases with random results only
type and shape count. A worker process runs them, and another one goes on after a crash. A case is refused by onnxruntime where it does not know
the operator at all.
"""

import argparse
import ctypes
import json
import multiprocessing
import pathlib
import sys

import numpy as np


def cases(text):
    from onnx.backend.test.loader import load_model_tests

    kinds = ("node", "simple", "pytorch-converted", "pytorch-operator")
    found = [case for kind in kinds for case in load_model_tests(kind=kind)]
    return [case for case in found if text in case.name]


def value_of(file, declared):
    """A value of a data set as onnxruntime takes it."""
    import onnx
    from onnx import numpy_helper

    data = file.read_bytes()
    kind = declared.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def data_sets(case, model):
    """Inputs and outputs of each data set; the cases of nodes have them in memory."""
    import onnx
    from onnx import numpy_helper

    def array(value):
        if isinstance(value, onnx.TensorProto):
            return numpy_helper.to_array(value)
        return np.asarray(value) if isinstance(value, np.generic) else value

    if case.data_sets is not None:
        return [[[array(value) for value in side] for side in sides] for sides in case.data_sets]
    sets = []
    for data in sorted(pathlib.Path(case.model_dir).glob("test_data_set_*")):
        initial = {i.name for i in model.graph.initializer}
        sides = []
        inputs = [i for i in model.graph.input if i.name not in initial]
        for kind, declared in (("input", inputs), ("output", model.graph.output)):
            files = [(data / f"{kind}_{i}.pb", of) for i, of in enumerate(declared)]
            sides.append([value_of(file, of) for file, of in files if file.exists()])
        sets.append(sides)
    return sets


# Cases whose results are random.
RANDOM = ("bernoulli", "training_dropout")
# The least relative tolerances, by type.
STEPS = {"bfloat16": 2**-6, "float16": 2**-9}


def is_plain(dtype):
    """Whether NumPy itself has the type."""
    return dtype.type.__module__ == "numpy"


def same(got, wanted, rtol, atol):
    if isinstance(wanted, list):
        assert len(got) == len(wanted), f"{len(got)} elements, not {len(wanted)}"
        for one, other in zip(got, wanted):
            same(one, other, rtol, atol)
        return
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"shape {got.shape}, not {wanted.shape}"
    rtol, atol = max(rtol, STEPS.get(wanted.dtype.name, 0), 1e-3), max(atol, 1e-5)
    if not is_plain(wanted.dtype):
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    if wanted.dtype.kind in "OSU":
        assert got.tolist() == wanted.tolist()
        return
    np.testing.assert_allclose(got.astype(wanted.dtype), wanted, rtol=rtol, atol=atol)


def elements(value, dtype):
    """The elements of an `OrtValue` of a type that onnxruntime's Python interface has no array of."""
    shape = value.shape()
    count = int(np.prod(shape)) * dtype.itemsize
    data = ctypes.string_at(value.data_ptr(), count) if count else b""
    return np.frombuffer(data, dtype).reshape(shape)


def run(case, device):
    """What becomes of a case: ("pass" or "left" or "refused" or "fail", why)."""
    import onnx
    from onnxruntime import OrtValue

    import provider

    model = case.model
    path = pathlib.Path(case.model_dir or "") / "model.onnx"
    if model is None:
        model = onnx.load(path, load_external_data=False)
    try:
        session = provider.session(model if case.model is not None else str(path), {"device": device})
    except Exception as error:
        text = str(error)
        if "onepool:" in text:
            raise
        return ("left" if "fallback to CPU EP has been explicitly disabled" in text else "refused"), text[:300]
    initial = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in initial]
    for given, wanted in data_sets(case, model):
        feeds = {declared.name: value for declared, value in zip(inputs, given) if value is not None}
        typed = {
            i.name: i.type.tensor_type.elem_type for i in inputs if i.type.WhichOneof("value") == "tensor_type"
        }
        values = {}
        for name, value in feeds.items():
            if isinstance(value, np.ndarray) and not is_plain(value.dtype):
                width = value.dtype.itemsize
                value = value.view({1: np.uint8, 2: np.uint16}[width])
                value = OrtValue.ortvalue_from_numpy_with_onnx_type(value, typed[name])
            elif isinstance(value, np.ndarray):
                value = OrtValue.ortvalue_from_numpy(value)
            values[name] = value
        outputs = [o.name for o in model.graph.output]
        if all(isinstance(v, OrtValue) for v in values.values()):
            got = []
            for value, declared in zip(session.run_with_ort_values(outputs, values), model.graph.output):
                element = declared.type.tensor_type.elem_type
                dtype = onnx.helper.tensor_dtype_to_np_dtype(element) if element else None
                if dtype is not None and not is_plain(dtype) and value.is_tensor():
                    got.append(elements(value, dtype))
                else:
                    got.append(value.numpy() if value.is_tensor() else value)
        else:
            got = session.run(outputs, values)
        for value, expected in zip(got, wanted):
            if any(name in case.name for name in RANDOM):
                assert np.shape(value) == np.shape(expected)
                continue
            same(value, expected, case.rtol, case.atol)
    return "pass", ""


def work(device, text, begin, queue):
    for i, case in enumerate(cases(text)):
        if i < begin:
            continue
        queue.put((i, case.name, None, None))
        try:
            result = run(case, device)
        except Exception as error:
            result = "fail", f"{type(error).__name__}: {error}"[:300]
        queue.put((i, case.name, *result))
    queue.put(None)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--filter", default="")
    arguments.add_argument("--least", type=int, default=0)
    arguments.add_argument("--report")
    asked = arguments.parse_args()
    results, begin, last = {}, 0, None
    context = multiprocessing.get_context("spawn")
    while True:
        queue = context.Queue()
        worker = context.Process(target=work, args=(asked.device, asked.filter, begin, queue))
        worker.start()
        done = False
        while True:
            try:
                said = queue.get(timeout=300 if worker.is_alive() else 2)
            except Exception:
                break
            if said is None:
                done = True
                break
            i, name, result, why = said
            begin = i + 1
            if result is None:
                last = name
                results[name] = ("fail", "the process ended")
            else:
                results[name] = (result, why)
        if not done:
            worker.terminate()
        worker.join()
        if done:
            break
        print(f"fail {last}: the process ended", flush=True)
    for name, (result, why) in sorted(results.items()):
        if result != "pass":
            print(f"{result} {name}: {why.splitlines()[0] if why else ''}"[:260])
    counts = {k: sum(r == k for r, _ in results.values()) for k in ("pass", "left", "refused", "fail")}
    if asked.report:
        pathlib.Path(asked.report).write_text(json.dumps(results, indent=1, sort_keys=True))
    print(f"{counts['left']} with nodes left to onnxruntime, {counts['refused']} refused by onnxruntime")
    print(f"{counts['pass']} passed, {counts['fail']} failed")
    sys.exit(counts["fail"] > 0 or counts["pass"] < asked.least)


if __name__ == "__main__":
    main()
