#!/usr/bin/env python3
"""Writes `cases.json`: nodes of com.microsoft's operators of language models with inputs and outputs.

The outputs are those of onnxruntime where its CPU provider has the operator, else those of a formula in NumPy. Needs
ml_dtypes, numpy, onnx and onnxruntime; the file says which release of onnxruntime.
"""
import json
import math
import os

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
}
CASES = []
REFUSALS = []


def numbers(*shape, seed=0, dtype=np.float32, scale=1.0):
    rng = np.random.default_rng(1000 + seed)
    return (rng.uniform(-1, 1, shape) * scale).astype(dtype)


def tensor(name, x):
    if x.dtype == ml_dtypes.bfloat16 or x.dtype == ml_dtypes.float8_e4m3fn:
        return helper.make_tensor(name, TYPES[x.dtype.name], x.shape, x.tobytes(), raw=True)
    return numpy_helper.from_array(x, name)


def plain(x):
    """A tensor as its type, sizes and numbers."""
    if x.dtype.name == "float8_e4m3fn":
        return dict(dtype=x.dtype.name, dims=x.shape, values=x.view(np.uint8).reshape(-1).tolist())
    is_float = x.dtype.kind == "f" or x.dtype.name == "bfloat16"
    return dict(dtype=x.dtype.name, dims=x.shape, values=[float(str(v)) if is_float else int(v) for v in x.reshape(-1)])


def made(op, inputs, outputs, attributes, domain="com.microsoft", opset=21, weights=()):
    node = helper.make_node(op, [n for n, _ in inputs], list(outputs), name="node", domain=domain, **(attributes or {}))
    given = {n: x for n, x in inputs if n}
    ins = [helper.make_tensor_value_info(n, TYPES[x.dtype.name], x.shape) for n, x in given.items() if n not in weights]
    outs = [helper.make_tensor_value_info(n, TYPES[t], None) for n, t in outputs.items() if n]
    graph = helper.make_graph([node], "g", ins, outs, [tensor(n, given[n]) for n in weights])
    model = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])
    return model


def refusal(says, op, inputs, outputs, attributes):
    """A node that is refused, with what the message says."""
    model = made(op, inputs, outputs, attributes)
    REFUSALS.append(dict(says=says, model=model.SerializeToString().hex(), inputs={n: plain(x) for n, x in inputs if n}))


def case(name, op, inputs, outputs, attributes=None, want=None, tolerance=1e-5, domain="com.microsoft", opset=21,
         weights=(), shared=()):
    """One node. `inputs` are arrays by name ("" is absent), `outputs` types by name; weights are initializers, and `shared`
    says which inputs and outputs onnxruntime wants in one memory."""
    given = {n: x for n, x in inputs if n}
    model = made(op, inputs, outputs, attributes, domain, opset, weights)
    expect(name, model, {n: x for n, x in given.items() if n not in weights}, outputs, want, tolerance, shared)


def expect(name, model, feed, outputs, want=None, tolerance=1e-5, shared=()):
    """As `case`, of a model."""
    source = "numpy"
    if want is None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        given = {n: onnxruntime.OrtValue.ortvalue_from_numpy(x.copy()) for n, x in feed.items()}
        for n, x in given.items():
            binding.bind_ortvalue_input(n, x)
        names = [n for n in outputs if n]
        for n in names:
            if n in dict(shared):
                binding.bind_ortvalue_output(n, given[dict(shared)[n]])
            else:
                binding.bind_output(n)
        session.run_with_iobinding(binding)
        want, source = dict(zip(names, binding.copy_outputs_to_cpu())), "onnxruntime"
    want = {n: np.asarray(x).astype(np.dtype(outputs[n])) for n, x in want.items()}
    CASES.append(dict(
        name=name, source=source, tolerance=tolerance, model=model.SerializeToString().hex(),
        inputs={n: plain(x) for n, x in feed.items()}, outputs={n: plain(x) for n, x in want.items()}))


def gates():
    for dtype, tolerance in [("float32", 1e-5), ("float16", 2e-3)]:
        for activation in ["silu", "sigmoid"]:
            inputs = [("x", numbers(2, 3, 24, seed=1, dtype=dtype)), ("scale", numbers(8, seed=2, dtype=dtype)),
                      ("gate", numbers(2, 3, 24, seed=3, dtype=dtype, scale=3))]
            case(f"gated_rms_norm_{activation}_{dtype}", "GatedRMSNorm", inputs, {"y": dtype},
                 dict(activation=activation, epsilon=1e-3), tolerance=tolerance, weights=["scale"])
        inputs = [("x", numbers(2, 3, 8, seed=1, dtype=dtype)), ("y", numbers(2, 3, 8, seed=2, dtype=dtype)),
                  ("gate", numbers(2, 3, 1, seed=3, dtype=dtype))]
        case(f"gated_add_{dtype}", "GatedAdd", inputs, {"z": dtype}, tolerance=tolerance)
        inputs = [("a", numbers(2, 3, 4, seed=1, dtype=dtype, scale=4)), ("bias", numbers(4, seed=2)),
                  ("factor", -np.exp(numbers(4, seed=3))), ("b", numbers(2, 3, 4, seed=4, dtype=dtype, scale=4))]
        case(f"linear_attention_gate_{dtype}", "LinearAttentionGate", inputs, {"decay": dtype, "beta": dtype},
             tolerance=tolerance, weights=["bias", "factor"])
        case(f"linear_attention_gate_of_decay_{dtype}", "LinearAttentionGate", inputs[:3], {"decay": dtype},
             tolerance=tolerance)
    # Projected: rounded to bfloat16 after each step.
    bf = ml_dtypes.bfloat16
    x, y, gate, weight = (numbers(3, 8, seed=1, dtype=bf), numbers(3, 8, seed=2, dtype=bf), numbers(3, 5, seed=3, dtype=bf),
                          numbers(5, 1, seed=4, dtype=bf))
    wide = lambda v: v.astype(np.float32)
    p = (wide(gate) @ wide(weight)).astype(bf)
    s = (1 / (1 + np.exp(-wide(p)))).astype(bf)
    z = (wide(x) + wide((wide(y) * wide(s)).astype(bf))).astype(bf)
    case("gated_add_projected", "GatedAdd", [("x", x), ("y", y), ("gate", gate), ("weight", weight)], {"z": "bfloat16"},
         want={"z": z}, tolerance=8e-3)


def linear_attention():
    for q_heads, kv_heads in [(4, 2), (2, 4), (2, 2)]:
        for rule in ["linear", "gated", "delta", "gated_delta"]:
            k = numbers(2, 5, kv_heads * 8, seed=2).reshape(2, 5, kv_heads, 8)
            k = (k / np.linalg.norm(k, axis=-1, keepdims=True)).reshape(2, 5, -1)
            inputs = [("q", numbers(2, 5, q_heads * 8, seed=1)), ("k", k), ("v", numbers(2, 5, kv_heads * 6, seed=3)),
                      ("past", numbers(2, kv_heads, 8, 6, seed=4))]
            if "gated" in rule:
                inputs.append(("decay", -np.abs(numbers(2, 5, kv_heads, seed=5))))
            elif rule == "delta":
                inputs.append(("", None))
            if "delta" in rule:
                inputs.append(("beta", np.abs(numbers(2, 5, kv_heads, seed=6))))
            case(f"linear_attention_{rule}_{q_heads}_{kv_heads}", "LinearAttention", inputs,
                 {"y": "float32", "present": "float32"}, dict(q_num_heads=q_heads, kv_num_heads=kv_heads, update_rule=rule))


    # Keys that several heads of values share, as queries do.
    inputs = [("q", numbers(2, 5, 16, seed=1)), ("k", numbers(2, 5, 16, seed=2, scale=0.3)), ("v", numbers(2, 5, 24, seed=3)),
              ("past", numbers(2, 4, 8, 6, seed=4)), ("decay", -np.abs(numbers(2, 5, 4, seed=5))),
              ("beta", np.abs(numbers(2, 5, 4, seed=6)))]
    case("linear_attention_of_shared_keys", "LinearAttention", inputs, {"y": "float32", "present": "float32"},
         dict(q_num_heads=2, kv_num_heads=4))


def convolutions():
    for taps, dilation, past, length in [(4, 1, True, 6), (3, 2, True, 5), (3, 2, False, 1), (4, 3, True, 2)]:
        keep = (taps - 1) * dilation
        inputs = [("x", numbers(2, 6, length, seed=1)), ("w", numbers(6, 1, taps, seed=2)), ("b", numbers(6, seed=3))]
        if past:
            inputs.append(("past", numbers(2, 6, keep, seed=4)))
        attributes = dict(activation="silu", dilation=dilation)
        case(f"causal_conv_{taps}_{dilation}_{length}", "CausalConvWithState", inputs, {"y": "float32", "state": "float32"},
             attributes, weights=["w", "b"])
        for channels in [(6,), (2, 3)]:
            last = lambda v: np.ascontiguousarray(np.swapaxes(v, 1, 2)).reshape(2, v.shape[2], *channels)
            moved = [(n, last(v) if n in ("x", "past") else v) for n, v in inputs]
            case(f"causal_conv_last_{len(channels)}_{taps}_{dilation}_{length}", "CausalConvWithState", moved,
                 {"y": "float32", "state": "float32"}, dict(channels_last=1, **attributes), weights=["w", "b"])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def one_query():
    heads, size, name = 2, 8, "DecoderMaskedMultiHeadAttention"
    width = heads * size
    q, k, v = (numbers(4, 1, width, seed=s) for s in (1, 2, 3))
    bias = ("bias", numbers(3 * width, seed=4))
    mask = np.array([[1] * 6, [0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1], [1] * 6], np.int32)
    past = [("past_k", numbers(4, heads, 5, size, seed=5)), ("past_v", numbers(4, heads, 5, size, seed=6))]
    none = ("", None)
    outs = {"y": "float32", "present_k": "float32", "present_v": "float32"}
    cross = [("k", numbers(4, heads, 7, size, seed=8)), ("v", numbers(4, heads, 7, size, seed=9))]
    case("one_query_across", name, [("q", q), *cross], {"y": "float32"}, dict(num_heads=heads), tolerance=1e-4)

    # onnxruntime has a cache that grows on other devices only.
    def grown(scale, added, hidden, bias):
        new = [(x[:, 0] + b).reshape(4, heads, 1, size) for x, b in zip((q, k, v), np.split(bias, 3))]
        keys, values = (np.concatenate([old, x], 2) for (_, old), x in zip(past, new[1:]))
        scores = np.einsum("bhqd,bhkd->bhqk", new[0], keys) * scale + added
        scores = np.where(hidden[:, None, None] != 0, scores, -np.inf)
        return dict(y=(softmax(scores) @ values).reshape(4, 1, width), present_k=keys, present_v=values)

    case("one_query_that_grows", name, [("q", q), ("k", k), ("v", v), ("mask", mask), none, *past, none, none, none, bias],
         outs, dict(num_heads=heads), want=grown(1 / math.sqrt(size), 0, mask, bias[1]))
    added = numbers(1, heads, 1, 6, seed=7)
    case("one_query_of_scores_with_a_bias", name, [("q", q), ("k", k), ("v", v), none, ("added", added), *past], outs,
         dict(num_heads=heads, scale=0.4), want=grown(0.4, added, np.ones((4, 6)), np.zeros(3 * width)))
    packed = np.concatenate([q, k, v], 2)
    case("one_query_of_one_tensor", name,
         [("q", packed), none, none, ("mask", mask), none, *past, none, none, none, bias], outs, dict(num_heads=heads),
         want=grown(1 / math.sqrt(size), 0, mask, bias[1]))
    # A cache of fixed length.
    fixed = [("past_k", numbers(4, heads, 9, size, seed=5)), ("past_v", numbers(4, heads, 9, size, seed=6))]
    seen = ("past_sequence_length", np.array([5], np.int32))
    shared = dict(num_heads=heads, past_present_share_buffer=1)

    def formula(table, rows, hidden):
        new = [x.reshape(4, heads, 1, size) for x in (q + bias[1][:width], k + bias[1][width:2 * width], v + bias[1][2 * width:])]
        present = [x.copy() for _, x in fixed]
        for p, x in zip(present, new[1:]):
            p[:, :, 5:6] = x
        y = np.zeros((4, heads, size), np.float32)
        for r in range(4):
            own = [[p[table[r, t] + r // rows * rows if t < 5 else r, :, t] for t in range(6)] for p in present]
            keys, values = (np.stack(x, 1) for x in own)
            scores = np.einsum("hd,htd->ht", new[0][r, :, 0], keys) / math.sqrt(size)
            scores = np.where(hidden[r] != 0, scores, -np.inf)
            y[r] = np.einsum("ht,htd->hd", softmax(scores), values)
        return dict(y=y.reshape(4, 1, width), present_k=present[0], present_v=present[1])

    alone = np.zeros((4, 9), np.int32)
    case("one_query_in_place", name,
         [("q", q), ("k", k), ("v", v), ("mask", mask), none, *fixed, seen, none, none, bias], outs, shared,
         want=formula(alone, 1, mask), tolerance=1e-4)
    case("one_query_in_place_as_onnxruntime_has_it", name,
         [("q", q), ("k", k), ("v", v), none, none, *fixed, seen, none, none, bias], outs, shared, tolerance=1e-4)
    table = np.random.default_rng(3).integers(0, 2, (2, 2, 9)).astype(np.int32)
    case("one_query_of_beams", name,
         [("q", q), ("k", k), ("v", v), none, none, *fixed, seen, ("beams", np.array([2], np.int32)), ("table", table), bias],
         outs, shared, want=formula(table.reshape(4, 9), 2, np.ones((4, 6))), tolerance=1e-4)
    case("one_query_of_beams_as_onnxruntime_has_it", name,
         [("q", q), ("k", k), ("v", v), none, none, *fixed, seen, ("beams", np.array([2], np.int32)), ("table", table), bias],
         outs, shared, tolerance=1e-4)


def packed_attention():
    heads, size, lengths, longest = 2, 4, [1, 2, 4], 4
    width, count = heads * size, sum(lengths)
    offsets = [b * longest + i for b, n in enumerate(lengths) for i in range(n)]
    padding = [i for i in range(3 * longest) if i not in offsets]
    offset = ("token_offset", np.array(offsets + padding, np.int32).reshape(3, longest))
    ends = ("ends", np.cumsum([0] + lengths).astype(np.int32))
    q, k = (numbers(count, width, seed=s) for s in (1, 2))
    v, bias = numbers(count, heads * 6, seed=3), numbers(2 * width + heads * 6, seed=4)
    added = numbers(1, heads, longest, longest, seed=5)

    def formula(q, k, v, added):
        y = np.zeros((count, heads, v.shape[1] // heads), np.float32)
        first = 0
        for n in lengths:
            of = lambda x: x[first:first + n].reshape(n, heads, -1).transpose(1, 0, 2)
            scores = of(q) @ of(k).transpose(0, 2, 1) / math.sqrt(size) + added[0, :, :n, :n]
            y[first:first + n] = (softmax(scores) @ of(v)).transpose(1, 0, 2)
            first += n
        return {"y": y.reshape(count, -1)}

    sums = q + bias[:width], k + bias[width:2 * width], v + bias[2 * width:]
    case("packed_attention", "PackedMultiHeadAttention",
         [("q", q), ("k", k), ("v", v), ("bias", bias), offset, ends, ("added", added)], {"y": "float32"},
         dict(num_heads=heads), want=formula(*sums, added))
    all_three = numbers(count, heads, 3, size, seed=6)
    bias = numbers(3 * width, seed=7)
    parts = [all_three[:, :, n].reshape(count, width) + bias[n * width:(n + 1) * width] for n in range(3)]
    case("packed_attention_of_one_tensor", "PackedMultiHeadAttention",
         [("q", all_three), ("", None), ("", None), ("bias", bias), offset, ends], {"y": "float32"}, dict(num_heads=heads),
         want=formula(*parts, np.zeros_like(added)))


def sparse_attention():
    heads, kv_heads, size, block, room = 4, 2, 16, 16, 64
    masks = np.array([[[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]],
                      [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]])
    rows = np.concatenate([np.zeros((2, 1), int), masks.sum(2).cumsum(1)], 1).astype(np.int32)
    columns = np.full((2, rows.max()), -1, np.int32)
    for to, mask in zip(columns, masks):
        to[:mask.sum()] = np.nonzero(mask)[1]
    angle = np.arange(room)[:, None] / 100.0 ** (np.arange(size // 2) / (size // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def rotated(x, at):
        low, high = np.split(x, 2)
        return np.concatenate([low * cos[at] - high * sin[at], high * cos[at] + low * sin[at]])

    def formula(q, k, v, keys, values, lens):
        (batch, length, _), y, keys, values = q.shape, np.zeros_like(q), keys.copy(), values.copy()
        part = lambda x, b, t, h: x[b, t, h * size:(h + 1) * size]
        for b in range(batch):
            first = 0 if max(lens) == length else lens[b] - length
            for t, h in np.ndindex(length, kv_heads):
                keys[b, h, first + t] = rotated(part(k, b, t, h), first + t)
                values[b, h, first + t] = part(v, b, t, h)
            for t, h in np.ndindex(length, heads):
                at = first + t
                seen = [j for j in range(at + 1) if masks[h % 2, at // block, j // block]]
                scores = keys[b, h // 2, seen] @ rotated(part(q, b, t, h), at) / math.sqrt(size)
                part(y, b, t, h)[:] = softmax(scores) @ values[b, h // 2, seen]
        return dict(y=y, present_k=keys, present_v=values)

    # onnxruntime's CPU provider reads the keys of other sequences than the first from wrong places.
    for name, length, lens in [("of_a_prompt", 40, [40]), ("of_one_query", 1, [50]), ("of_prompts", 40, [40, 23]),
                               ("of_queries", 1, [50, 20])]:
        batch = len(lens)
        q, k, v = (numbers(batch, length, n * size, seed=s) for n, s in ((heads, 1), (kv_heads, 2), (kv_heads, 3)))
        past = [numbers(batch, kv_heads, room, size, seed=s) for s in (4, 5)]
        inputs = [("q", q), ("k", k), ("v", v), ("past_k", past[0]), ("past_v", past[1]), ("rows", rows), ("columns", columns),
                  ("total", np.array([max(lens)], np.int32)), ("lens", np.array(lens, np.int32)), ("cos", cos), ("sin", sin)]
        case(f"sparse_attention_{name}", "SparseAttention", inputs,
             {"y": "float32", "present_k": "float32", "present_v": "float32"},
             dict(num_heads=heads, kv_num_heads=kv_heads, sparse_block_size=block, do_rotary=1), tolerance=1e-4,
             want=formula(q, k, v, *past, lens) if batch > 1 else None,
             shared=[("present_k", "past_k"), ("present_v", "past_v")], weights=["rows", "columns", "total", "cos", "sin"])


def paged_attention():
    heads, kv_heads, size, block = 4, 2, 8, 4
    angle = np.arange(32)[:, None] / 100.0 ** (np.arange(size // 2) / (size // 2))
    cos, sin = (f(angle).astype(np.float16) for f in (np.cos, np.sin))
    table = np.array([[5, 2, 7, -1], [1, -1, -1, -1], [3, 0, -1, -1]], np.int32)

    def formula(q, k, v, caches, lengths, past, rotates, slots, window, softcap):
        wide = lambda x: x.astype(np.float32)
        keys, values = (wide(x).reshape(-1, kv_heads, size).copy() for x in caches)
        q, k, v = (wide(x).reshape(len(x), -1, size) for x in (q, k, v))

        def rotated(x, at):
            if not rotates:
                return x
            low, high, c, s = *np.split(x, 2, 1), wide(cos)[at], wide(sin)[at]
            return np.concatenate([low * c - high * s, high * c + low * s], 1).astype(np.float16).astype(np.float32)

        place = lambda b, at: table[b, at // block] * block + at % block
        y, t = np.zeros_like(q), 0
        tokens = [(b, past[b] + i) for b, n in enumerate(lengths) for i in range(n)]
        for t, (b, at) in enumerate(tokens):
            to = place(b, at) if slots is None else slots[t]
            if to >= 0:
                keys[to], values[to] = rotated(k[t], at), v[t]
        for t, (b, at) in enumerate(tokens):
            seen = [place(b, j) for j in range(at + 1) if window < 0 or j > at - window]
            turned = rotated(q[t], at)
            for h in range(heads):
                scores = keys[seen, h // 2] @ turned[h] / math.sqrt(size)
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                y[t, h] = softmax(scores) @ values[seen, h // 2]
        shape = caches[0].shape
        return dict(y=y.reshape(len(y), -1), k_out=keys.reshape(shape), v_out=values.reshape(shape))

    forms = [("prompts", [5, 2, 3], [0, 0, 0], 1, False, -1, 0.0), ("steps", [1, 1, 1], [9, 3, 4], 0, False, -1, 0.0),
             ("mixed", [2, 0, 4], [7, 2, 1], 1, True, 3, 2.0)]
    for name, lengths, past, rotates, given, window, softcap in forms:
        count = sum(lengths)
        q, k, v = (numbers(count, n * size, seed=s, dtype=np.float16) for n, s in ((heads, 1), (kv_heads, 2), (kv_heads, 3)))
        caches = [numbers(8, block, kv_heads, size, seed=s, dtype=np.float16) for s in (4, 5)]
        # Of the places that are given one is that of a token whose key is there already.
        slots = None
        if given:
            tokens = [(b, past[b] + i) for b, n in enumerate(lengths) for i in range(n)]
            slots = np.array([table[b, at // block] * block + at % block for b, at in tokens], np.int32)
            slots[1] = -1
        none = ("", None)
        operands = [("q", np.concatenate([q, k, v], 1)), none, none] if given else [("q", q), ("k", k), ("v", v)]
        inputs = [*operands, ("k_cache", caches[0]), ("v_cache", caches[1]),
                  ("ends", np.cumsum([0] + lengths).astype(np.int32)), ("past", np.array(past, np.int32)), ("table", table),
                  ("cos", cos), ("sin", sin)]
        if given:
            inputs.append(("slots", slots))
        case(f"paged_attention_{name}", "PagedAttention", inputs, {"y": "float16", "k_out": "float16", "v_out": "float16"},
             dict(num_heads=heads, kv_num_heads=kv_heads, do_rotary=rotates, local_window_size=window, softcap=softcap),
             want=formula(q, k, v, caches, lengths, past, rotates, slots, window, softcap), tolerance=3e-3,
             weights=["cos", "sin"])


def products():
    for quant_type in (0, 1):
        for rows, n, k, block in [(1, 10, 128, 32), (7, 10, 64, 16), (3, 6, 256, 64)]:
            codes = np.random.default_rng(k).integers(0, 256, n * k // 2).astype(np.uint8)
            inputs = [("a", numbers(rows, k, seed=1)), ("b", codes), ("absmax", np.abs(numbers(n * k // block, seed=2)))]
            case(f"bnb4_{quant_type}_{rows}_{k}_{block}", "MatMulBnb4", inputs, {"y": "float32"},
                 dict(K=k, N=n, block_size=block, quant_type=quant_type), tolerance=1e-4, weights=["b", "absmax"])
    f8 = ml_dtypes.float8_e4m3fn
    for rows, n, k, block, extra in [(1, 6, 64, 32, False), (5, 12, 96, 64, True), (2, 5, 256, 128, True)]:
        a, b = numbers(2, rows, k, seed=1, dtype=np.float16), numbers(n, k, seed=2, scale=300).astype(f8)
        scales = np.abs(numbers(n, -(-k // block), seed=3, scale=0.01))
        bias, a_scale = numbers(n, seed=4, dtype=np.float16), np.array(0.005, np.float32)
        wide = a.astype(np.float32)
        inputs = [("a", a), ("b", b), ("scales", scales)]
        if extra:
            inputs += [("a_scale", a_scale), ("bias", bias)]
            wide = (wide / a_scale).astype(f8).astype(np.float32) * a_scale
        weight = b.astype(np.float32) * np.repeat(scales, block, 1)[:, :k]
        y = (wide @ weight.T + (bias.astype(np.float32) if extra else 0)).astype(np.float16)
        case(f"float8_weights{'_and_rows' if extra else ''}_{rows}_{k}_{block}", "MatMulBlockQuantizedFp8Weight", inputs, {"y": "float16"},
             dict(block_size=block), want={"y": y}, tolerance=2e-3, weights=["b", "scales"])
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for rows, n, k, biased in [(1, 6, 64, False), (6, 9, 48, True)]:
        codes = np.random.default_rng(k).integers(0, 16, (n, k))
        b = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        scales = np.abs(numbers(n, k // 16, seed=2, scale=8)).astype(f8)
        inputs = [("a", numbers(rows, k, seed=1, dtype=np.float16)), ("b", b), ("scales", scales.view(np.uint8)),
                  ("scale", np.array(0.03, np.float32))]
        bias = numbers(n, seed=4, dtype=np.float16)
        if biased:
            inputs += [("", None), ("bias", bias)]
        weight = e2m1[codes] * np.repeat(scales.astype(np.float32), 16, 1) * np.float32(0.03)
        y = (inputs[0][1].astype(np.float32) @ weight.T + (bias.astype(np.float32) if biased else 0)).astype(np.float16)
        case(f"float4_weights_{rows}_{k}", "MatMulBlockQuantizedFp4Weight", inputs, {"y": "float16"}, want={"y": y},
             tolerance=3e-3, weights=["b", "scales", "scale"])


def distances():
    for dtype in ("float32", "float16"):
        for both, n in [(0, 20), (1, 20), (1, 1)]:
            buckets, heads, most = 8, 3, 16
            table = numbers(buckets, heads, seed=1, dtype=dtype)
            flat = table.reshape(heads, buckets)
            y = np.zeros((1, heads, n, n), dtype)
            for i in range(n):
                for j in range(n):
                    d, first, side = j - i, 0, buckets
                    if both:
                        side //= 2
                        first = side if d > 0 else 0
                    d, exact = abs(d), side // 2
                    part = lambda x: np.log(np.float32(x) / np.float32(exact))
                    far = exact + int(part(d) / part(most) * np.float32(side - exact)) if d >= exact else d
                    y[0, :, i, j] = flat[:, first + min(far, side - 1)]
            length = np.array([n], np.int64)
            case(f"relative_position_bias_{both}_{n}_{dtype}", "RelativePositionBias",
                 [("table", table), ("queries", length), ("keys", length)], {"y": dtype},
                 dict(max_distance=most, is_bidirectional=both), want={"y": y}, tolerance=0,
                 weights=["table", "queries", "keys"])


def causal_with_valid_keys():
    """ONNX's Attention of opset 24: causal masks end at the last valid key, rows that see no key are zero."""
    q, k, v = numbers(3, 4, 3, 8, seed=1), numbers(3, 2, 6, 8, seed=2), numbers(3, 2, 6, 8, seed=3)
    lens = np.array([6, 4, 2], np.int64)
    y = np.zeros_like(q)
    for b, h, i in np.ndindex(3, 4, 3):
        seen = max(0, int(lens[b]) - 3 + i + 1)
        if seen > 0:
            scores = q[b, h, i] @ k[b, h // 2, :seen].T / math.sqrt(8)
            y[b, h, i] = softmax(scores) @ v[b, h // 2, :seen]
    none = ("", None)
    inputs = [("q", q), ("k", k), ("v", v), none, none, none, ("lens", lens)]
    case("causal_attention_ends_at_the_last_valid_key", "Attention", inputs, {"y": "float32"}, dict(is_causal=1),
         want={"y": y}, domain="", opset=24)
    case("causal_attention_of_valid_keys_as_onnxruntime_has_it", "Attention", inputs, {"y": "float32"},
         dict(is_causal=1), domain="", opset=24)


def experts_after_attention():
    """A layer as exports of gpt-oss have it: sinks and a window, then experts of codes whose first product has SwiGLU's two
    operands in turn."""
    heads, kv, head, experts, inner = 4, 2, 16, 4, 32
    hidden = heads * head
    rows = np.arange(16)[:, None] * 100.0 ** (-np.arange(head // 2) / (head // 2))
    codes = np.random.default_rng(5)
    weights = {
        "cos": np.cos(rows).astype(np.float32), "sin": np.sin(rows).astype(np.float32), "sinks": numbers(heads, seed=1, scale=2),
        "router": numbers(hidden, experts, seed=2), "rows": np.array([-1, experts]),
        "up": codes.integers(0, 256, (experts, 2 * inner, hidden // 2), dtype=np.uint8),
        "up_scales": numbers(experts, 2 * inner, hidden // 32, seed=3), "up_bias": numbers(experts, 2 * inner, seed=4, scale=5),
        "down": codes.integers(0, 256, (experts, hidden, inner // 2), dtype=np.uint8),
        "down_scales": numbers(experts, hidden, 1, seed=6, scale=0.01), "down_bias": numbers(experts, hidden, seed=7),
    }
    nodes = [
        helper.make_node("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "last", "total", "cos", "sin", "", "", "sinks"],
                         ["x", "nk", "nv"], domain="com.microsoft", num_heads=heads, kv_num_heads=kv, do_rotary=1, local_window_size=4),
        helper.make_node("MatMul", ["x", "router"], ["all"]), helper.make_node("Reshape", ["all", "rows"], ["chosen"]),
        helper.make_node("QMoE", ["x", "chosen", "up", "up_scales", "up_bias", "down", "down_scales", "down_bias"], ["y"],
                         domain="com.microsoft", k=2, activation_type="swiglu", activation_alpha=1.702, activation_beta=1.0,
                         swiglu_limit=7.0, swiglu_fusion=1, normalize_routing_weights=1, expert_weight_bits=4, block_size=32),
    ]
    for name, tokens, past in [("prompt", 9, 0), ("token", 1, 6)]:
        total = tokens + past
        weights["total"] = np.array([total], np.int32)
        feed = {
            "q": numbers(1, tokens, hidden, seed=10), "k": numbers(1, tokens, kv * head, seed=11),
            "v": numbers(1, tokens, kv * head, seed=12), "pk": numbers(1, kv, past, head, seed=13),
            "pv": numbers(1, kv, past, head, seed=14), "last": np.array([total - 1], np.int32),
        }
        ins = [helper.make_tensor_value_info(n, TYPES[x.dtype.name], x.shape) for n, x in feed.items()]
        outputs = {"y": "float32", "nk": "float32", "nv": "float32"}
        outs = [helper.make_tensor_value_info(n, TYPES[t], None) for n, t in outputs.items()]
        graph = helper.make_graph(nodes, "g", ins, outs, [tensor(n, x) for n, x in weights.items()])
        model = helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        expect(f"experts_after_attention_with_sinks_{name}", model, feed, outputs, tolerance=1e-4)


def refusals():
    x = numbers(2, 3, 8, seed=1)
    one = {"y": "float32"}
    refusal("a gate of activation", "GatedRMSNorm", [("x", x), ("s", numbers(4)), ("g", x)], one, dict(activation="relu"))
    refusal("Reshape", "GatedRMSNorm", [("x", x), ("s", numbers(5)), ("g", x)], one, {})
    a = numbers(2, 3, 4)
    refusal("input b", "LinearAttentionGate", [("a", a), ("d", numbers(4)), ("f", numbers(4))],
            {"decay": "float32", "beta": "float32"}, {})
    q = numbers(2, 1, 8)
    own = [("q", q), ("k", q), ("v", q)]
    cache = [("pk", numbers(2, 2, 5, 4)), ("pv", numbers(2, 2, 5, 4))]
    none, name = ("", None), "DecoderMaskedMultiHeadAttention"
    refusal("num_heads", name, own, one, {})
    refusal("past_sequence_length", name, [*own, none, none, *cache], one, dict(num_heads=2, past_present_share_buffer=1))
    refusal("shows its scores", name, own, one, dict(num_heads=2, output_qk=1))
    beams = [("n", np.array([2], np.int32)), ("t", np.zeros((1, 2, 5), np.int32))]
    refusal("beams over a cache that grows", name, [*own, none, none, *cache, none, *beams], one, dict(num_heads=2))
    conv = [("x", x), ("w", numbers(3, 1, 2))]
    refusal("state_window 2", "CausalConvWithState", conv, {"y": "float32", "s": "float32"}, dict(state_window=2))
    refusal("ndim 2", "CausalConvWithState", conv, {"y": "float32", "s": "float32"}, dict(ndim=2))
    refusal("dilation", "CausalConvWithState", conv, {"y": "float32", "s": "float32"}, dict(dilation=0))
    linear = dict(q_num_heads=2, kv_num_heads=2, update_rule="linear", state_window=1)
    refusal("the states of 1 positions", "LinearAttention", [("q", x), ("k", x), ("v", x)],
            {"y": "float32", "s": "float32"}, linear)
    half = numbers(3, 16, dtype=np.float16)
    pages = [("q", half), ("k", half), ("v", half), *((n, numbers(2, 4, 2, 8, dtype=np.float16)) for n in ("kc", "vc")),
             ("c", np.array([0, 3], np.int32)), ("p", np.array([0], np.int32)), ("t", np.array([[0, 1]], np.int32))]
    paged = dict(num_heads=2, kv_num_heads=2)
    refusal("LATENT", "PagedAttention", pages, {"y": "float16"}, dict(kv_cache_layout="LATENT", **paged))
    refusal("rotary_offset", "PagedAttention", pages, {"y": "float16"}, dict(rotary_offset=8, **paged))
    refusal("k_cache_dtype", "PagedAttention", pages, {"y": "float16"}, dict(k_cache_dtype="int4", **paged))
    refusal("sparse_block_size", "SparseAttention", [("q", x)], one, paged)
    f8 = numbers(6, 64).astype(ml_dtypes.float8_e4m3fn)
    half = numbers(2, 64, dtype=np.float16)
    refusal("12 elements", "MatMulBlockQuantizedFp8Weight", [("a", half), ("b", f8), ("s", numbers(6, 3))],
            {"y": "float16"}, dict(block_size=32))
    refusal("a last axis of 64", "MatMulBlockQuantizedFp8Weight",
            [("a", numbers(2, 60, dtype=np.float16)), ("b", f8), ("s", numbers(6, 2))], {"y": "float16"}, dict(block_size=32))
    refusal("block_size", "MatMulBlockQuantizedFp8Weight", [("a", half), ("b", f8), ("s", numbers(6, 2))],
            {"y": "float16"}, dict(block_size=0))


if __name__ == "__main__":
    gates()
    linear_attention()
    convolutions()
    one_query()
    packed_attention()
    sparse_attention()
    paged_attention()
    products()
    distances()
    causal_with_valid_keys()
    experts_after_attention()
    refusals()
    with open(os.path.join(HERE, "cases.json"), "w", encoding="utf-8") as f:
        json.dump(dict(onnxruntime=onnxruntime.__version__, cases=CASES, refusals=REFUSALS), f, separators=(",", ":"))
        f.write("\n")
    print(len(CASES), "cases,", len(REFUSALS), "refusals")
