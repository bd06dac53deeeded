"""The provider in an unmodified onnxruntime."""

import json
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import external
import provider
from provider import session, stats


VERSION = tuple(map(int, ort.__version__.split(".")[:2]))


def value(name, shape, kind=T.FLOAT):
    return h.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=(), opset=17):
    graph = h.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)


def chain():
    """y = relu(a + b), of open size."""
    nodes = [h.make_node("Add", ["a", "b"], ["c"]), h.make_node("Relu", ["c"], ["y"])]
    return model(nodes, [value("a", ["n", 64]), value("b", ["n", 64])], [value("y", ["n", 64])])


def network(seed=7):
    """A small convolutional network with large constants."""
    random = np.random.default_rng(seed)
    weight = lambda name, *shape: numpy_helper.from_array(
        (random.standard_normal(shape) * 0.1).astype(np.float32), name
    )
    constants = [weight("w1", 16, 3, 3, 3), weight("b1", 16), weight("w2", 64, 16, 3, 3), weight("w3", 64, 10)]
    nodes = [
        h.make_node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        h.make_node("Sigmoid", ["c"], ["d"]),
        h.make_node("GlobalAveragePool", ["d"], ["e"]),
        h.make_node("Flatten", ["e"], ["f"]),
        h.make_node("MatMul", ["f", "w3"], ["y"]),
    ]
    return model(nodes, [value("x", ["n", 3, 32, 32])], [value("y", ["n", 10])], constants)


def reference(model, feeds):
    model = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_it_is_listed():
    devices = provider.register()
    assert len(devices) == 1
    assert (devices[0].ep_name, devices[0].ep_vendor) == (provider.NAME, "onepool")
    assert session(chain()).get_providers()[0] == provider.NAME


def by_selection(select):
    """The providers of a session whose options choose among devices, and its result."""
    provider.register()
    options = ort.SessionOptions()
    select(options)
    run = ort.InferenceSession(chain().SerializeToString(), sess_options=options, enable_fallback=0)
    before = stats()
    (y,) = run.run(None, {"a": np.ones((4, 64), np.float32), "b": np.ones((4, 64), np.float32)})
    assert (y == 2).all()
    return run.get_providers(), (stats() - before).runs


@pytest.mark.parametrize("policy", ["DEFAULT", "PREFER_CPU", "MAX_PERFORMANCE"])
def test_onnxruntime_selects_it_by_policy(policy):
    policy = getattr(ort.OrtExecutionProviderDevicePolicy, policy)
    providers, runs = by_selection(lambda options: options.set_provider_selection_policy(policy))
    assert (providers[0], runs) == (provider.NAME, 1)


@pytest.mark.parametrize("ours", [True, False])
def test_a_function_of_the_application_selects_it(ours):
    def chosen(devices, model, runtime, most):
        assert most >= 2
        return [*(device for device in devices if ours and device.ep_name == provider.NAME), devices[-1]]

    providers, runs = by_selection(lambda options: options.set_provider_selection_policy_delegate(chosen))
    assert (provider.NAME in providers, runs) == (ours, int(ours))


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_results_are_those_of_onnxruntime_for_each_size(device):
    for made, name, width in ((chain(), "a", 64), (network(), "x", None)):
        run = session(made, {"device": device})
        for n in (1, 5, 1, 33):
            shape = (n, 64) if width else (n, 3, 32, 32)
            feeds = {i.name: np.random.default_rng(n).standard_normal(shape, np.float32) for i in run.get_inputs()}
            for got, wanted in zip(run.run(None, feeds), reference(made, feeds)):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def aligned(shape, offset=0):
    """Zeros that begin on a page."""
    count = int(np.prod(shape))
    raw = np.zeros(count * 4 + (1 << 17), np.uint8)
    start = -raw.ctypes.data % (1 << 16) + offset
    return raw[start : start + count * 4].view(np.float32).reshape(shape)


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_no_byte_of_bound_memory_is_copied(device):
    n = 4096
    run = session(chain(), {"device": device, "strict": "1"})
    a, b, y = (aligned((n, 64)) for _ in range(3))
    binding = run.io_binding()
    for name, array in (("a", a), ("b", b)):
        binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    before = stats()
    for k in range(3):
        a[:], b[:] = k, -1
        run.run_with_iobinding(binding)
        assert (y == max(k - 1, 0)).all()
    moved = stats() - before
    assert (moved.runs, moved.bytes_copied) == (3, 0)
    assert moved.bytes_in_place == 3 * 3 * a.nbytes
    if device == "cpu":
        assert moved.bindings == 1


def test_arrays_of_numpy_are_used_where_they_are():
    run = session(chain())
    before = stats()
    for n in (1, 100, 1000):
        feeds = {"a": np.ones((n, 64), np.float32), "b": np.ones((n, 64), np.float32)}
        assert (run.run(None, feeds)[0] == 2).all()
    moved = stats() - before
    assert moved.bytes_copied == 0 and moved.bytes_in_place > 0


def test_ort_values_are_used_where_they_are():
    run = session(chain())
    a = ort.OrtValue.ortvalue_from_numpy(np.full((8, 64), 3, np.float32))
    before = stats()
    (y,) = run.run_with_ort_values(["y"], {"a": a, "b": a})
    assert (y.numpy() == 6).all()
    assert (stats() - before).bytes_copied == 0


def test_values_of_an_arena_share_pages_and_are_used_in_place():
    """onnxruntime's allocator places tensors side by side, at multiples of 256 bytes."""
    run = session(chain(), {"device": "sim", "strict": "1"})
    before = stats()
    for n in (500, 260, 500, 1001):
        a, b = (ort.OrtValue.ortvalue_from_numpy(np.full((n, 64), k, np.float32)) for k in (3, 4))
        for _ in range(2):
            (y,) = run.run_with_ort_values(["y"], {"a": a, "b": b})
            assert (y.numpy() == 7).all()
    moved = stats() - before
    assert (moved.runs, moved.bytes_copied) == (8, 0)


def test_small_tensors_are_copied_by_one_binding():
    run = session(chain(), {"device": "sim"})
    before = stats()
    kept = []
    for k in range(12):
        a, b = (np.full((5, 64), value, np.float32) for value in (k, 1))
        kept.append((a, run.run(None, {"a": a, "b": b})[0]))
    assert all((y == a + 1).all() for a, y in kept)
    moved = stats() - before
    assert (moved.runs, moved.bindings, moved.bytes_in_place) == (12, 1, 0)


def test_bound_arrays_that_share_pages_are_used_in_place():
    run = session(chain(), {"device": "sim", "strict": "1", "keep_imports": "1"})
    n, width = 1028, 64
    whole = aligned((6, n, width))
    before = stats()
    for places in ((0, 1, 2), (3, 4, 5), (2, 1, 0), (1, 1, 2), (0, 2, 4)):
        a, b, y = (whole[place] for place in places)
        a[:], b[:] = 1, 5
        wanted = 10 if places[0] == places[1] else 6
        binding = run.io_binding()
        for name, array in (("a", a), ("b", b)):
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        run.run_with_iobinding(binding)
        assert (y == wanted).all()
    moved = stats() - before
    assert (moved.runs, moved.bytes_copied) == (5, 0)


def test_an_output_may_lie_where_an_input_does():
    run = session(chain())
    a, b, other = (aligned((16, 64)) for _ in range(3))
    for place in (other, a, other, a):
        a[:], b[:] = 2, 3
        binding = run.io_binding()
        for name, array in (("a", a), ("b", b)):
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, place.shape, place.ctypes.data)
        run.run_with_iobinding(binding)
        assert (place == 5).all()


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_cache_is_one_value_that_is_updated_in_place(device):
    """What models/tiny_llm/expected.json says of "Hello", with past and present in the same memory."""
    path = str(pathlib.Path(__file__).parents[3] / "models/tiny_llm/fixed/model.onnx")
    run = session(path, {"device": device, "strict": "1"})
    rows, names = 32, [i.name for i in run.get_inputs() if i.name.startswith("past")]
    caches = {name: aligned((1, 2, rows, 16)) for name in names}
    assert len(caches) == 4
    tokens, done, made = [1, 78, 107, 114, 114, 117], 0, []
    for _ in range(4):
        binding = run.io_binding()
        ids, mask = np.array([tokens], np.int64), np.zeros((1, rows), np.int64)
        mask[0, : done + len(tokens)] = 1
        logits = aligned((1, len(tokens), 320))
        for name, array, kind in (("input_ids", ids, np.int64), ("attention_mask", mask, np.int64)):
            binding.bind_input(name, "cpu", 0, kind, array.shape, array.ctypes.data)
        binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        for name, cache in caches.items():
            binding.bind_input(name, "cpu", 0, np.float32, cache.shape, cache.ctypes.data)
            present = name.replace("past_key_values", "present")
            binding.bind_output(present, "cpu", 0, np.float32, cache.shape, cache.ctypes.data)
        before = stats()
        run.run_with_iobinding(binding)
        assert (stats() - before).bytes_copied == 0
        done += len(tokens)
        for cache in caches.values():
            assert cache[0, :, :done].any(axis=2).all() and not cache[0, :, done:].any()
        tokens = [int(logits[0, -1].argmax())]
        made += tokens
    assert made == [170, 124, 249, 25]


def test_a_limit_of_memory_is_kept():
    x = np.zeros((64, 3, 32, 32), np.float32)
    wanted = session(network(), {"device": "sim"}).run(None, {"x": x})[0]
    got = session(network(), {"device": "sim", "memory_limit": str(1 << 30)}).run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, wanted)
    with pytest.raises(Exception, match="onepool.*(memory|heap)"):
        session(network(), {"device": "sim", "memory_limit": "4096"}).run(None, {"x": x})
    # Other sessions have all of it.
    np.testing.assert_array_equal(session(network(), {"device": "sim"}).run(None, {"x": x})[0], wanted)


def test_runs_in_parallel_are_not_mixed_up():
    run, made = session(network()), network()
    wanted = {}
    for k in range(8):
        x = np.full((1 + k % 3, 3, 32, 32), k, np.float32)
        wanted[k] = (x, reference(made, {"x": x})[0])
    wrong = []

    def work(k):
        x, y = wanted[k]
        for _ in range(10):
            got = run.run(None, {"x": x})[0]
            if got.shape != y.shape or not np.allclose(got, y, rtol=1e-4, atol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_control_flow_is_taken_whole():
    body = lambda op: h.make_graph([h.make_node(op, ["a", "one"], ["r"])], "b", [], [value("r", ["n"])])
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    branch = h.make_node("If", ["c"], ["y"], then_branch=body("Add"), else_branch=body("Sub"))
    made = model([branch], [value("c", [], T.BOOL), value("a", ["n"])], [value("y", ["n"])], [one])
    # Releases before 1.28 do not hand over what the branches alone read.
    run = session(made, fallback=VERSION < (1, 28))
    a = np.arange(5, dtype=np.float32)
    for c in (True, False):
        assert np.array_equal(run.run(None, {"c": np.array(c), "a": a})[0], a + (1 if c else -1))

    turn = h.make_graph(
        [h.make_node("Add", ["s", "a"], ["t"]), h.make_node("Identity", ["go"], ["on"])],
        "turn",
        [value("i", [], T.INT64), value("go", [], T.BOOL), value("s", ["n"])],
        [value("on", [], T.BOOL), value("t", ["n"])],
    )
    made = model(
        [h.make_node("Loop", ["m", "", "a"], ["y"], body=turn)],
        [value("m", [], T.INT64), value("a", ["n"])],
        [value("y", ["n"])],
    )
    run = session(made)
    for m in (0, 3):
        assert np.array_equal(run.run(None, {"m": np.array(m), "a": a})[0], a * (m + 1))


def test_sizes_that_only_the_run_tells():
    made = model([h.make_node("NonZero", ["a"], ["y"])], [value("a", ["n"])], [value("y", [1, "k"], T.INT64)])
    run = session(made)
    for a in ([0, 1, 2, 0], [0, 0], [1]):
        assert run.run(None, {"a": np.array(a, np.float32)})[0].tolist() == [np.nonzero(a)[0].tolist()]


def test_nodes_that_it_lacks_stay_with_onnxruntime():
    nodes = [
        h.make_node("Add", ["a", "a"], ["b"]),
        h.make_node("Cast", ["b"], ["t"], to=T.STRING),
        h.make_node("Cast", ["t"], ["u"], to=T.FLOAT),
        h.make_node("Mul", ["u", "b"], ["y"]),
    ]
    made = model(nodes, [value("a", [3])], [value("y", [3])])
    with pytest.raises(Exception, match="fallback"):
        session(made)
    before = stats()
    run = session(made, fallback=True)
    found = stats() - before
    assert (found.parts, found.nodes) == (2, 2)
    assert run.run(None, {"a": np.array([1, 2, 3], np.float32)})[0].tolist() == [4, 16, 36]


def test_weights_in_another_file(tmp_path):
    made, path = network(), str(tmp_path / "m.onnx")
    onnx.save(made, path, save_as_external_data=True, location="w.bin", size_threshold=64)
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    got = session(path).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, reference(path, {"x": x})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("embed", ["0", "1"])
def test_a_model_of_compiled_parts_goes_round(tmp_path, embed):
    made, path = network(), str(tmp_path / "m_ctx.onnx")
    entries = {"ep.context_enable": "1", "ep.context_embed_mode": embed, "ep.context_file_path": path}
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    first = session(made, entries=entries).run(None, {"x": x})[0]
    written = onnx.load(path)
    assert [node.op_type for node in written.graph.node] == ["EPContext"]
    run = session(path)
    assert np.array_equal(run.run(None, {"x": x})[0], first)
    # What it holds was changed: an error, and no crash.
    node = written.graph.node[0]
    held = next(a for a in node.attribute if a.name == "ep_cache_context")
    if embed == "1":
        held.s = b"something else"
        onnx.save(written, path)
    else:
        (tmp_path / held.s.decode()).write_bytes(b"something else")
    with pytest.raises(Exception, match="another version, or damaged"):
        session(path)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"devise": "cpu"}, "there is no option \"devise\""),
        ({"device": "nothing"}, "there is no device API"),
        ({"precision": "int8"}, "expected float32 or float16"),
        ({"strict": "yes"}, "expected 0 or 1"),
        ({"copy_threshold": "-1"}, "expected a number of bytes"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(options, says):
    with pytest.raises(Exception, match=re.escape(says)):
        session(chain(), options)


def test_small_tensors_are_copied_unless_options_say_otherwise():
    small = np.zeros((1, 64), np.float32)
    copied = {}
    for strict in ("0", "1"):
        run = session(chain(), {"device": "sim", "strict": strict})
        before = stats()
        assert (run.run(None, {"a": small, "b": small})[0] == 0).all()
        copied[strict] = (stats() - before).bytes_copied
    assert copied["0"] == 3 * small.nbytes and copied["1"] == 0
    run = session(chain(), {"device": "sim", "copy_threshold": "0"})
    before = stats()
    run.run(None, {"a": small, "b": small})
    assert (stats() - before).bytes_copied == 0


def test_shapes_that_do_not_fit_are_an_error():
    with pytest.raises(Exception, match="onepool|INVALID_ARGUMENT"):
        session(chain()).run(None, {"a": np.zeros((2, 64), np.float32), "b": np.zeros((3, 64), np.float32)})


def test_verdicts_are_in_the_log():
    program = (
        "import numpy as np, test_provider as t\n"
        "s = t.session(t.chain(), log_severity_level=1)\n"
        "s.run(None, {'a': np.zeros((4, 64), np.float32), 'b': np.zeros((4, 64), np.float32)})\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=True
    ).stderr
    assert "onepool takes 2 of 2 nodes in 1 parts" in said
    assert "a: used in place by the CPU, 1024 bytes" in said


def test_verdicts_are_in_the_profile(tmp_path):
    run = session(chain(), enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    for n in (4, 8):
        run.run(None, {"a": np.zeros((n, 64), np.float32), "b": np.zeros((n, 64), np.float32)})
    events = json.loads(pathlib.Path(run.end_profiling()).read_text())
    own = [event for event in events if event["name"].endswith("_onepool_run")]
    if VERSION < (1, 25):
        # These have no place for what a provider says.
        assert not own
        return
    assert len(own) == 2
    for event, n in zip(own, (4, 8)):
        said = event["args"]
        assert said["onepool_tensor_a"] == f"a: used in place by the CPU, {n * 256} bytes: the device is the CPU"
        assert "used in place" in said["onepool_tensor_y"]
        assert (said["onepool_bytes_in_place"], said["onepool_bytes_copied"]) == (str(3 * n * 256), "0")
        # It lies within the run that onnxruntime tells of.
        runs = [e for e in events if e["name"] == "model_run"]
        assert any(e["ts"] <= event["ts"] + 1000 and event["ts"] <= e["ts"] + e["dur"] + 1000 for e in runs)


def test_an_imported_allocation_is_used_in_place(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(chain(), path)
    if external.library() is None:
        pytest.skip("this package has no library for C")
    words = [sys.executable, "external.py", str(path)]
    said = subprocess.run(words, cwd=pathlib.Path(__file__).parent, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, "imported\n"), said.stderr


def test_the_library_can_be_unloaded_and_loaded_again():
    program = (
        "import gc, time, numpy as np, onnxruntime as ort, provider, test_provider as t\n"
        "for _ in range(3):\n"
        "    s = t.session(t.network())\n"
        "    s.run(None, {'x': np.zeros((2, 3, 32, 32), np.float32)})\n"
        "    del s\n"
        "    gc.collect()\n"
        "    ort.unregister_execution_provider_library('onepool')\n"
        "    time.sleep(0.1)\n"
        "print('done')\n"
    )
    folder = pathlib.Path(__file__).parent
    said = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (0, "done\n"), said.stderr


def test_the_program_of_the_page_runs(tmp_path):
    page = (pathlib.Path(__file__).parents[3] / "docs/ORT.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    onnx.save(network(), tmp_path / "model.onnx")
    said = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("(1, 10)")
