#!/usr/bin/env python3
"""Makes the tiny models of this folder as Hugging Face optimum exports them, and the tokens that onnxruntime gives.

The weights are random and seeded: what the models write is no language. `text` is an encoder-decoder as T5, `speech` one as
Whisper whose decoder is in two files, `decoder` has a decoder alone, and `vectors` an encoder as BERT, whose tokens'
vectors sentence-transformers makes one of. decoder_model_merged.onnx has the decoder
without and with past as the two branches of an If on `use_cache_branch`; the weights are outside of them.

`genai_speech` and `genai_text` have the weights of `speech` and `text` in the form of onnxruntime-genai: one decoder, whose past
is empty at first. Of `genai_speech` the encoder gives keys and values of the cross-attention; the decoder of `genai_text` makes
them of `encoder_hidden_states` in each run. `decoder_mean.onnx` reads its cache otherwise than by attention, too. Needs numpy, onnx, onnxruntime and tokenizers.
"""
import importlib.util
import math
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("tiny_llm", os.path.join(HERE, "..", "tiny_llm", "make.py"))
tiny_llm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny_llm)
VOCABULARY, write = tiny_llm.VOCABULARY, tiny_llm.write

HIDDEN, HEADS, HEAD, FFN, BUCKETS = 16, 2, 8, 32, 24
I64, I32, F32, BOOL = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL
TEXT = dict(seed=2, context=64, source=48, layers=2, start=0)
SPEECH = dict(seed=34, context=48, bands=4, frames=16, layers=1, start=1)
DECODER = dict(seed=38, context=160, layers=1)
VECTORS = dict(seed=41, context=48)
PROMPTS = ["Hello", "The quick brown fox jumps over the lazy dog", "\u65e5\u672c \u00fcber"]


class Weights:
    """Random weights by name: each is made once, whichever graph asks first."""

    def __init__(self, seed):
        self.random, self.all = np.random.default_rng(seed), {}

    def normal(self, name, shape, deviation, mean=0.0):
        if name not in self.all:
            value = self.random.standard_normal(shape) * deviation + mean
            self.all[name] = numpy_helper.from_array(value.astype(np.float32), name)
        return name

    def constant(self, name, value):
        self.all.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name


class Part:
    """Nodes of a graph, or of a branch of one."""

    def __init__(self, weights):
        self.w, self.nodes, self.used = weights, [], set()

    def node(self, op, inputs, name, outputs=None, **attributes):
        outputs = outputs or [name]
        self.used.update(inputs)
        self.nodes.append(helper.make_node(op, inputs, outputs, **attributes))
        return outputs[0]

    def ints(self, *values):
        return self.w.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def int(self, value):
        return self.w.constant(f"int_{value}", np.array(value, np.int64))

    def float(self, value):
        return self.w.constant(f"float_{value}", np.array(value, np.float32))

    def size(self, of, axis, name):
        return self.node("Gather", [self.node("Shape", [of], f"{name}.shape"), self.int(axis)], name, axis=0)

    def product(self, name, x, k, n, deviation):
        return self.node("MatMul", [x, self.w.normal(f"{name}.weight", (k, n), deviation)], name)

    def norm(self, name, x):
        square = self.node("ReduceMean", [self.node("Mul", [x, x], f"{name}.square"), self.ints(-1)], f"{name}.mean")
        root = self.node("Sqrt", [self.node("Add", [square, self.float(1e-5)], f"{name}.sum")], f"{name}.root")
        scale = self.w.normal(f"{name}.scale", (HIDDEN,), 0.1, 1.0)
        return self.node("Mul", [self.node("Div", [x, root], f"{name}.unit"), scale], name)

    def heads_of(self, name, x, deviation):
        y = self.product(name, x, HIDDEN, HIDDEN, deviation / math.sqrt(HIDDEN))
        y = self.node("Reshape", [y, self.ints(0, -1, HEADS, HEAD)], f"{name}.split")
        return self.node("Transpose", [y], f"{name}.heads", perm=[0, 2, 1, 3])

    def attention(self, name, q, k, v, bias):
        scores = self.node("MatMul", [q, self.node("Transpose", [k], f"{name}.turned", perm=[0, 1, 3, 2])], f"{name}.scores")
        scores = self.node("Mul", [scores, self.float(1 / math.sqrt(HEAD))], f"{name}.scaled")
        if bias is not None:
            scores = self.node("Add", [scores, bias], f"{name}.biased")
        y = self.node("MatMul", [self.node("Softmax", [scores], f"{name}.shares", axis=-1), v], f"{name}.mixed")
        y = self.node("Transpose", [y], f"{name}.mixed.turned", perm=[0, 2, 1, 3])
        y = self.node("Reshape", [y, self.ints(0, -1, HIDDEN)], f"{name}.joined")
        return self.product(f"{name}.out", y, HIDDEN, HIDDEN, 1.6 / math.sqrt(HIDDEN))

    def feed_forward(self, name, x):
        y = self.node("Relu", [self.product(f"{name}.up", self.norm(f"{name}.norm", x), HIDDEN, FFN, 1.4 / math.sqrt(HIDDEN))], f"{name}.relu")
        return self.node("Add", [x, self.product(f"{name}.down", y, FFN, HIDDEN, 1.4 / math.sqrt(FFN))], f"{name}.sum")

    def embedded(self):
        return self.node("Gather", [self.w.normal("embedding", (VOCABULARY, HIDDEN), 1.0), "input_ids"], "embed", axis=0)

    def hidden_columns(self, mask, name):
        """What is added to scores of columns that a mask of 0 and 1 hides."""
        wide = self.node("Unsqueeze", [mask, self.ints(1, 2)], f"{name}.wide")
        hidden = self.node("Equal", [wide, self.int(0)], f"{name}.hidden")
        return self.node("Where", [hidden, self.float(-1e9), self.float(0.0)], name)

    def distances(self, rows, columns, name):
        column = self.node("Unsqueeze", [rows, self.ints(1)], f"{name}.column")
        return self.node("Sub", [column, columns], name)

    def relative(self, distances, least, name):
        """A learnt bias by distance, as T5 has."""
        at = self.node("Clip", [distances, self.int(least), self.int(BUCKETS + least - 1)], f"{name}.bucket")
        at = self.node("Sub", [at, self.int(least)], f"{name}.place")
        bias = self.node("Gather", [self.w.normal(f"{name}.table", (BUCKETS, HEADS), 1.5), at], f"{name}.rows", axis=0)
        return self.node("Unsqueeze", [self.node("Transpose", [bias], f"{name}.turned", perm=[2, 0, 1]), self.ints(0)], name)


def info(all_):
    return [helper.make_tensor_value_info(n, t, s) for n, t, s in all_]


def save(path, nodes, inputs, outputs, weights):
    graph = helper.make_graph(nodes, "graph", info(inputs), info(outputs), weights)
    opsets = {"": 18, **{node.domain: 1 for node in nodes if node.domain}}
    model = helper.make_model(graph, ir_version=8, producer_name="onepool", opset_imports=[helper.make_opsetid(*o) for o in opsets.items()])
    onnx.checker.check_model(model)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    onnx.save(model, path)


def decoder(p, c, kind, past, made=False, mean=False):
    """The nodes of a decoder without or with `past`, and its outputs. Where they are `made`, keys and values of the encoder's
    output are computed in each run. The `mean` of a cache's rows is no attention: no mask hides one of them."""
    crossed, made_here, present = kind != "decoder", made, None
    names = [f"past_key_values.{i}{'.decoder' if crossed else ''}" for i in range(c["layers"])]
    x = p.embedded()
    first = p.size(f"{names[0]}.key", 2, "past") if past else p.int(0)
    end = p.node("Add", [first, p.size("input_ids", 1, "new")], "end")
    rows = p.node("Range", [first, end, p.int(1)], "rows")
    columns = p.node("Range", [p.int(0), end, p.int(1)], "columns")
    apart = p.distances(rows, columns, "apart")
    later = p.node("Less", [apart, p.int(0)], "later")
    bias = p.node("Where", [later, p.float(-1e9), p.float(0.0)], "causal")
    if kind == "text":
        bias = p.node("Add", [p.relative(apart, 0, "relative"), bias], "bias")
    else:
        # Whisper's decoder with past has `cache_position`, the one without counts.
        at = {"decoder": "position_ids", "speech": "cache_position" if past else rows}[kind]
        x = p.node("Add", [x, p.node("Gather", [p.w.normal("places", (c["context"], HIDDEN), 0.8), at], "place", axis=0)], "placed")
    if kind == "decoder":
        bias = p.node("Add", [p.hidden_columns("attention_mask", "shown"), bias], "bias")
    shown = p.hidden_columns("encoder_attention_mask", "encoder_shown") if kind == "text" else None
    outputs = []
    for i, name in enumerate(names):
        y = p.norm(f"layer{i}.norm", x)
        q, k, v = (p.heads_of(f"layer{i}.{part}", y, 1.5) for part in "qkv")
        present = name.replace("past_key_values", "present")
        for part, new in (("key", k), ("value", v)):
            if past:
                p.node("Concat", [f"{name}.{part}", new], f"layer{i}.{part}s", [f"{present}.{part}"], axis=2)
            else:
                p.node("Identity", [new], f"layer{i}.{part}s", [f"{present}.{part}"])
            outputs.append(f"{present}.{part}")
        y = p.attention(f"layer{i}", q, f"{present}.key", f"{present}.value", bias)
        x = p.node("Add", [x, y], f"layer{i}.self")
        if crossed:
            q = p.heads_of(f"layer{i}.cross.q", p.norm(f"layer{i}.cross.norm", x), 1.5)
            kv = []
            for part in ("key", "value"):
                own, made = f"past_key_values.{i}.encoder.{part}", f"present.{i}.encoder.{part}"
                if made_here:
                    kv.append(p.heads_of(f"layer{i}.cross.{part}", "encoder_hidden_states", 1.5))
                    continue
                outputs.append(made)
                if past:
                    kv.append(own)
                    # What optimum gives in the place of an output that the decoder with past does not have.
                    nothing = numpy_helper.from_array(np.zeros((0, HEADS, 1, HEAD), np.float32), f"{made}.none")
                    p.node("Constant", [], f"{made}.none", [made], value=nothing)
                else:
                    heads = p.heads_of(f"layer{i}.cross.{part}", "encoder_hidden_states", 1.5)
                    kv.append(p.node("Identity", [heads], f"layer{i}.cross.{part}s", [made]))
            x = p.node("Add", [x, p.attention(f"layer{i}.cross", q, *kv, shown)], f"layer{i}.crossed")
        x = p.feed_forward(f"layer{i}.ffn", x)
    if mean:
        row = p.node("Reshape", [p.node("ReduceMean", [f"{present}.key", p.ints(2)], "mean"), p.ints(0, 1, -1)], "mean.row")
        place = p.node("Gather", [p.w.normal("places", (c["context"], HIDDEN), 0.8), "past_sequence_length"], "place", axis=0)
        x = p.node("Add", [p.node("Add", [x, row], "x.mean"), place], "x.place")
    # The embedding is the head too; without the product each token would make itself likely.
    x = p.product("turn", p.norm("final", x), HIDDEN, HIDDEN, 3 / HIDDEN)
    p.node("MatMul", [x, p.node("Transpose", ["embedding"], "head", perm=[1, 0])], "logits")
    return ["logits", *outputs]


def save_decoders(folder, c, kind, weights, split=False):
    crossed = kind != "decoder"
    own = ".decoder" if crossed else ""
    frames = c["frames"] // 2 if kind == "speech" else "encoder_sequence_length"
    ids = ("input_ids", I64, ["batch_size", "decoder_sequence_length"])
    hidden = ("encoder_hidden_states", F32, ["batch_size", frames, HIDDEN])
    shown = ("encoder_attention_mask", I64, ["batch_size", "encoder_sequence_length"])
    pasts = [(f"past_key_values.{i}{own}.{part}", F32, ["batch_size", HEADS, "past_decoder_sequence_length", HEAD])
             for i in range(c["layers"]) for part in ("key", "value")]
    crosses = [(f"past_key_values.{i}.encoder.{part}", F32, ["batch_size", HEADS, "encoder_sequence_length_out", HEAD])
               for i in range(c["layers"]) for part in ("key", "value") if crossed]
    given = {"text": [shown], "speech": [], "decoder": [("attention_mask", I64, ["batch_size", "attention_length"]),
                                                        ("position_ids", I64, ["batch_size", "decoder_sequence_length"])]}[kind]
    counted = [("cache_position", I64, ["decoder_sequence_length"])] if kind == "speech" else []
    states = [hidden] if crossed else []

    def results(names, total):
        for name in names:
            rows = "encoder_sequence_length_out" if ".encoder." in name else total
            shape = ["batch_size", "decoder_sequence_length", VOCABULARY] if name == "logits" else ["batch_size", HEADS, rows, HEAD]
            yield name, F32, shape

    parts = {past: Part(weights) for past in (False, True)}
    names = {past: decoder(part, c, kind, past) for past, part in parts.items()}
    all_ = list(weights.all.values())
    branches = {past: helper.make_graph(part.nodes, "with_past" if past else "no_past", [], info(results(names[past], "rows")))
                for past, part in parts.items()}
    chosen = helper.make_node("If", ["use_cache_branch"], names[False], name="optimum::if", then_branch=branches[True], else_branch=branches[False])
    used = parts[False].used | parts[True].used
    save(os.path.join(folder, "decoder_model_merged.onnx"), [chosen], [ids, *given, *states, *pasts, *crosses, *counted, ("use_cache_branch", BOOL, [1])],
         list(results(names[False], "past_decoder_sequence_length + 1")), [w for w in all_ if w.name in used])
    if split:
        of = lambda past: [w for w in all_ if w.name in parts[past].used]
        save(os.path.join(folder, "decoder_model.onnx"), parts[False].nodes, [ids, *given, *states], list(results(names[False], "decoder_sequence_length")), of(False))
        kept = [n for n in names[True] if ".encoder." not in n]
        nodes = [n for n in parts[True].nodes if n.op_type != "Constant"]
        save(os.path.join(folder, "decoder_with_past_model.onnx"), nodes, [ids, *given, *pasts, *crosses, *counted], list(results(kept, "total")), of(True))


def attended(p, name, q, k, v, past=None, present=None):
    """com.microsoft's MultiHeadAttention, causal over a cache where there is a `past`."""
    inputs = [q, k, v, "", "", "", *past] if past else [q, k, v]
    outputs = [f"{name}.mixed", *(present or [])]
    y = p.node("MultiHeadAttention", inputs, f"{name}.mha", outputs, domain="com.microsoft", num_heads=HEADS, unidirectional=int(bool(past)))
    return p.product(f"{name}.out", y, HIDDEN, HIDDEN, 1.6 / math.sqrt(HIDDEN))


def save_genai_speech(folder, c, weights):
    """The decoder as onnxruntime-genai's builder writes it for Whisper: places are counted by the rows of the cache."""
    p = Part(weights)
    new, past = p.size("input_ids", 1, "new"), p.size("past_key_self_0", 2, "past")
    end = p.node("Unsqueeze", [p.node("Add", [past, new], "total"), p.ints(0)], "end")
    first = p.node("Unsqueeze", [past, p.ints(0)], "first")
    table = p.w.normal("places", (c["context"], HIDDEN), 0.8)
    x = p.node("Add", [p.embedded(), p.node("Slice", [table, first, end, p.ints(0)], "place")], "placed")
    pasts, presents, crosses = [], [], []
    deviation = 1.5 / math.sqrt(HIDDEN)
    for i in range(c["layers"]):
        y = p.norm(f"layer{i}.norm", x)
        q, k, v = (p.product(f"layer{i}.{part}", y, HIDDEN, HIDDEN, deviation) for part in "qkv")
        own, present = ([f"{which}_{part}_self_{i}" for part in ("key", "value")] for which in ("past", "present"))
        x = p.node("Add", [x, attended(p, f"layer{i}", q, k, v, own, present)], f"layer{i}.self")
        q = p.product(f"layer{i}.cross.q", p.norm(f"layer{i}.cross.norm", x), HIDDEN, HIDDEN, deviation)
        cross = [f"past_{part}_cross_{i}" for part in ("key", "value")]
        x = p.node("Add", [x, attended(p, f"layer{i}.cross", q, *cross)], f"layer{i}.crossed")
        x = p.feed_forward(f"layer{i}.ffn", x)
        pasts, presents, crosses = pasts + own, presents + present, crosses + cross
    x = p.product("turn", p.norm("final", x), HIDDEN, HIDDEN, 3 / HIDDEN)
    p.node("MatMul", [x, p.node("Transpose", ["embedding"], "head", perm=[1, 0])], "logits")
    cache = lambda names, rows: [(name, F32, ["batch_size", HEADS, rows, HEAD]) for name in names]
    save(os.path.join(folder, "decoder.onnx"), p.nodes,
         [("input_ids", I32, ["batch_size", "sequence_length"]), *cache(pasts, "past_sequence_length"), *cache(crosses, c["frames"] // 2)],
         [("logits", F32, ["batch_size", "sequence_length", VOCABULARY]), *cache(presents, "total_sequence_length")],
         [w for w in weights.all.values() if w.name in p.used])


def save_genai_text(folder, c, weights, file="decoder.onnx", mean=False):
    """A decoder that is given the encoder's output in each run."""
    p = Part(weights)
    outputs = decoder(p, c, "text", True, made=True, mean=mean)
    counted = [("past_sequence_length", I32, [1])] if mean else []
    cache = lambda which, rows: [(f"{which}.{i}.decoder.{part}", F32, ["batch_size", HEADS, rows, HEAD])
                                 for i in range(c["layers"]) for part in ("key", "value")]
    save(os.path.join(folder, file), p.nodes,
         [("input_ids", I64, ["batch_size", "sequence_length"]), *counted, ("encoder_hidden_states", F32, ["batch_size", "encoder_length", HIDDEN]),
          ("encoder_attention_mask", I64, ["batch_size", "encoder_length"]), *cache("past_key_values", "past_sequence_length")],
         [(outputs[0], F32, ["batch_size", "sequence_length", VOCABULARY]), *cache("present", "total_sequence_length")],
         [w for w in weights.all.values() if w.name in p.used])


def save_encoder(folder, c, kind, weights, file="encoder_model.onnx", names=("input_features", "last_hidden_state"), cross=False):
    p = Part(weights)
    if kind == "text":
        inputs = [("input_ids", I64, ["batch_size", "encoder_sequence_length"]), ("attention_mask", I64, ["batch_size", "encoder_sequence_length"])]
        x = p.embedded()
        places = p.node("Range", [p.int(0), p.size("input_ids", 1, "new"), p.int(1)], "places")
        bias = p.relative(p.distances(places, places, "apart"), -BUCKETS // 2, "encoder.relative")
        bias = p.node("Add", [bias, p.hidden_columns("attention_mask", "shown")], "bias")
        length = "encoder_sequence_length"
    else:
        inputs = [(names[0], F32, ["batch_size", c["bands"], c["frames"]])]
        x, bias, length = names[0], None, c["frames"] // 2
        for i, (channels, stride) in enumerate(((c["bands"], 1), (HIDDEN, 2))):
            kernel = weights.normal(f"conv{i}.weight", (HIDDEN, channels, 3), 1.5 / math.sqrt(3 * channels))
            x = p.node("Tanh", [p.node("Conv", [x, kernel], f"conv{i}", kernel_shape=[3], pads=[1, 1], strides=[stride])], f"tanh{i}")
        x = p.node("Transpose", [x], "frames", perm=[0, 2, 1])
        x = p.node("Add", [x, weights.normal("encoder.places", (length, HIDDEN), 0.5)], "placed")
    y = p.norm("encoder.norm", x)
    q, k, v = (p.heads_of(f"encoder.{part}", y, 1.5) for part in "qkv")
    x = p.feed_forward("encoder.ffn", p.node("Add", [x, p.attention("encoder", q, k, v, bias)], "encoder.self"))
    y = p.norm("encoder.final", x)
    p.node("Identity", [y], "last", [names[1]])
    outputs = [(names[1], F32, ["batch_size", length, HIDDEN])]
    for i in range(c["layers"] if cross else 0):
        for part in ("key", "value"):
            p.node("Identity", [p.heads_of(f"layer{i}.cross.{part}", names[1], 1.5)], f"{part}s{i}", [f"present_{part}_cross_{i}"])
            outputs.append((f"present_{part}_cross_{i}", F32, ["batch_size", HEADS, length, HEAD]))
    save(os.path.join(folder, file), p.nodes, inputs, outputs, [w for w in weights.all.values() if w.name in p.used])


def session(folder, file):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(os.path.join(folder, file), options, providers=["CPUExecutionProvider"])


def run(model, feeds):
    names = [i.name for i in model.get_inputs()]
    return dict(zip([o.name for o in model.get_outputs()], model.run(None, {n: feeds[n] for n in names})))


def greedy(folder, prompt, count, encoded=None, shown=None):
    """Greedy tokens of onnxruntime, which runs the merged graph as optimum does; and how far apart the closest two were."""
    model = session(folder, "decoder_model_merged.onnx")
    # The branch without past reads none: one row of nothing stands for it.
    cache = {i.name: np.zeros((1, HEADS, 1, HEAD), np.float32) for i in model.get_inputs() if i.name.startswith("past")}
    new, tokens, past, least = prompt, [], 0, math.inf
    for _ in range(count):
        places = np.arange(past, past + len(new), dtype=np.int64)
        got = run(model, dict(input_ids=np.array([new], np.int64), attention_mask=np.ones((1, past + len(new)), np.int64),
                              position_ids=places[None], cache_position=places, encoder_hidden_states=encoded,
                              encoder_attention_mask=shown, use_cache_branch=np.array([past > 0]), **cache))
        for name in cache:
            if past == 0 or ".encoder." not in name:
                cache[name] = got[name.replace("past_key_values", "present")]
        past += len(new)
        row = got["logits"][0, -1]
        ranked = np.sort(row)
        least = min(least, float(ranked[-1] - ranked[-2]))
        tokens.append(int(row.argmax()))
        new = tokens[-1:]
    return tokens, least


def genai_greedy(folder, prompt, count, given, file="decoder.onnx"):
    """Greedy tokens of onnxruntime for a decoder whose past is empty at first; `given` does not change in a text."""
    model = session(folder, file)
    types = {i.name: np.int32 if "int32" in i.type else np.int64 for i in model.get_inputs()}
    cache = {i.name: np.zeros((1, HEADS, 0, HEAD), np.float32) for i in model.get_inputs()
             if i.name.startswith(("past_key", "past_value")) and i.name not in given}
    new, tokens = prompt, []
    for _ in range(count):
        past = np.array([next(iter(cache.values())).shape[2]], np.int32)
        got = run(model, dict(input_ids=np.array([new], types["input_ids"]), past_sequence_length=past, **given, **cache))
        cache = {name: got[name.replace("past_key_values", "present").replace("past", "present")] for name in cache}
        tokens.append(int(got["logits"][0, -1].argmax()))
        new = tokens[-1:]
    return tokens


def genai_config(folder, kind, c, encoder, decoder, **more):
    own = dict(hidden_size=HIDDEN, head_size=HEAD, num_attention_heads=HEADS, num_key_value_heads=HEADS, num_hidden_layers=c["layers"])
    write(os.path.join(folder, "genai_config.json"), dict(
        model=dict(type=kind, bos_token_id=1, eos_token_id=2, pad_token_id=0, vocab_size=VOCABULARY, context_length=c["context"], **more,
                   encoder=dict(filename="encoder.onnx", **own, **encoder), decoder=dict(filename="decoder.onnx", **own, **decoder)),
        search=dict(do_sample=False, max_length=c["context"], num_beams=1, past_present_share_buffer=False, top_k=1)))


def check(name, cases, least):
    assert least > 2e-3, f"{name}: two tokens are {least} apart: take another seed"
    print(f"{name}: the closest two tokens are {least:.4f} apart; {[len(set(c['tokens'])) for c in cases]} different tokens")
    return cases


def make_text(tokenizer):
    folder, c = os.path.join(HERE, "text"), TEXT
    weights = Weights(c["seed"])
    save_encoder(folder, c, "text", weights)
    save_decoders(folder, c, "text", weights)
    write(os.path.join(folder, "config.json"), dict(
        model_type="t5", is_encoder_decoder=True, d_model=HIDDEN, d_kv=HEAD, num_heads=HEADS, num_layers=1, num_decoder_layers=c["layers"],
        n_positions=c["source"], decoder_start_token_id=c["start"], eos_token_id=2, pad_token_id=0, vocab_size=VOCABULARY))
    encoder, cases, least = session(folder, "encoder_model.onnx"), [], math.inf
    for text in PROMPTS:
        prompt = tokenizer.encode(text).ids
        shown = np.ones((1, len(prompt)), np.int64)
        encoded = run(encoder, dict(input_ids=np.array([prompt], np.int64), attention_mask=shown))["last_hidden_state"]
        tokens, apart = greedy(folder, [c["start"]], 12, encoded, shown)
        least = min(least, apart)
        cases.append(dict(prompt=text, prompt_tokens=prompt, tokens=tokens))
    # The last one again, beyond the smallest cache.
    long, apart = greedy(folder, [c["start"]], 100, encoded, shown)
    genai = os.path.join(HERE, "genai_text")
    save_encoder(genai, c, "text", weights, "encoder.onnx", ("", "encoder_outputs"))
    save_genai_text(genai, c, weights)
    genai_config(genai, "seq2seq", dict(c, context=160), dict(inputs=dict(input_ids="input_ids", attention_mask="attention_mask"), outputs=dict(encoder_outputs="encoder_outputs")),
                 dict(inputs=dict(input_ids="input_ids", encoder_hidden_states="encoder_hidden_states", encoder_attention_mask="encoder_attention_mask",
                                  past_key_names="past_key_values.%d.decoder.key", past_value_names="past_key_values.%d.decoder.value"),
                      outputs=dict(logits="logits", present_key_names="present.%d.decoder.key", present_value_names="present.%d.decoder.value")),
                 decoder_start_token_id=c["start"])
    assert genai_greedy(genai, [c["start"]], 100, dict(encoder_hidden_states=encoded, encoder_attention_mask=shown)) == long
    save_genai_text(genai, dict(c, layers=1), weights, "decoder_mean.onnx", mean=True)
    mean = genai_greedy(genai, [c["start"]], 24, dict(encoder_hidden_states=encoded, encoder_attention_mask=shown), "decoder_mean.onnx")
    case = dict(prompt=text, prompt_tokens=prompt)
    return check("text", cases, min(least, apart)), [dict(case, tokens=long), dict(case, tokens=mean)]


def make_speech():
    folder, c = os.path.join(HERE, "speech"), SPEECH
    weights = Weights(c["seed"])
    save_encoder(folder, c, "speech", weights)
    save_decoders(folder, c, "speech", weights, split=True)
    write(os.path.join(folder, "config.json"), dict(
        model_type="whisper", is_encoder_decoder=True, d_model=HIDDEN, decoder_layers=c["layers"], decoder_attention_heads=HEADS,
        max_source_positions=c["frames"] // 2, max_target_positions=c["context"], decoder_start_token_id=c["start"], eos_token_id=2,
        pad_token_id=0, vocab_size=VOCABULARY))
    genai = os.path.join(HERE, "genai_speech")
    save_encoder(genai, c, "speech", weights, "encoder.onnx", ("audio_features", "hidden_states"), cross=True)
    save_genai_speech(genai, c, weights)
    genai_config(genai, "whisper", c, dict(inputs=dict(audio_features="audio_features"), outputs=dict(
        encoder_hidden_states="hidden_states", cross_present_key_names="present_key_cross_%d", cross_present_value_names="present_value_cross_%d")),
        dict(inputs=dict(input_ids="input_ids", past_key_names="past_key_self_%d", past_value_names="past_value_self_%d",
                         cross_past_key_names="past_key_cross_%d", cross_past_value_names="past_value_cross_%d"),
             outputs=dict(logits="logits", present_key_names="present_key_self_%d", present_value_names="present_value_self_%d")))
    genai_encoder = session(genai, "encoder.onnx")
    encoder, random, cases, least = session(folder, "encoder_model.onnx"), np.random.default_rng(5), [], math.inf
    for prompt in ([c["start"], 3, 5], [c["start"]]):
        features = np.round(random.standard_normal((1, c["bands"], c["frames"])), 3).astype(np.float32)
        encoded = run(encoder, dict(input_features=features))["last_hidden_state"]
        tokens, apart = greedy(folder, prompt, 40 if len(prompt) == 1 else 12, encoded)
        least = min(least, apart)
        made = run(genai_encoder, dict(audio_features=features))
        cross = {name.replace("present", "past"): made[name] for name in made if "cross" in name}
        assert genai_greedy(genai, prompt, len(tokens), cross) == tokens
        cases.append(dict(prompt="", features=[float(f"{v:.3f}") for v in features.ravel()], prompt_tokens=prompt, tokens=tokens))
    # The tokens are those of the merged graph, and the folder has the two that it was made of.
    os.remove(os.path.join(folder, "decoder_model_merged.onnx"))
    return check("speech", cases, least)


def make_decoder(tokenizer):
    folder, c = os.path.join(HERE, "decoder"), DECODER
    save_decoders(folder, c, "decoder", Weights(c["seed"]))
    write(os.path.join(folder, "config.json"), dict(
        model_type="gpt2", num_hidden_layers=c["layers"], num_attention_heads=HEADS, hidden_size=HIDDEN,
        max_position_embeddings=c["context"], vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2))
    cases, least = [], math.inf
    for text in PROMPTS:
        prompt = tokenizer.encode(text).ids
        tokens, apart = greedy(folder, prompt, 100 if text == PROMPTS[0] else 24)
        least = min(least, apart)
        cases.append(dict(prompt=text, prompt_tokens=prompt, tokens=tokens))
    return check("decoder", cases, least)


def make_vectors(tokenizer):
    """An encoder with places and kinds of tokens; the vectors of whole texts, one by one, as sentence-transformers makes them."""
    folder, c = os.path.join(HERE, "vectors"), VECTORS
    weights = Weights(c["seed"])
    p = Part(weights)
    inputs = [(name, I64, ["batch_size", "sequence_length"]) for name in ("input_ids", "attention_mask", "token_type_ids")]
    kind = p.node("Gather", [weights.normal("kinds", (2, HIDDEN), 0.5), "token_type_ids"], "kind", axis=0)
    rows = p.node("Range", [p.int(0), p.size("input_ids", 1, "new"), p.int(1)], "rows")
    place = p.node("Gather", [weights.normal("places", (c["context"], HIDDEN), 0.5), rows], "place", axis=0)
    x = p.node("Add", [p.node("Add", [p.embedded(), kind], "kinds_in"), place], "placed")
    y = p.norm("norm", x)
    q, k, v = (p.heads_of(part, y, 1.5) for part in "qkv")
    x = p.feed_forward("ffn", p.node("Add", [x, p.attention("self", q, k, v, p.hidden_columns("attention_mask", "shown"))], "attended"))
    y = p.norm("final", x)
    p.node("Identity", [y], "last", ["last_hidden_state"])
    save(os.path.join(folder, "onnx", "model.onnx"), p.nodes, inputs,
         [("last_hidden_state", F32, ["batch_size", "sequence_length", HIDDEN])], [w for w in weights.all.values() if w.name in p.used])
    write(os.path.join(folder, "config.json"), dict(model_type="bert", max_position_embeddings=c["context"], pad_token_id=0))
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    write(os.path.join(folder, "modules.json"), [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{name}")
                                                 for i, (path, name) in enumerate(modules)])
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    write(os.path.join(folder, "1_Pooling", "config.json"), dict(word_embedding_dimension=HIDDEN, pooling_mode_mean_tokens=True))
    write(os.path.join(folder, "sentence_bert_config.json"), dict(max_seq_length=40, do_lower_case=True))
    prompts = dict(query="search: ", passage="")
    write(os.path.join(folder, "config_sentence_transformers.json"), dict(prompts=prompts, default_prompt_name=None))
    model, cases = session(folder, os.path.join("onnx", "model.onnx")), []
    for text in [*PROMPTS, "a", "The quick brown fox jumps over the lazy dog. " * 4]:
        for name in ("query", "passage"):
            tokens = tokenizer.encode((prompts[name] + text).lower()).ids[:40]
            ones = np.ones((1, len(tokens)), np.int64)
            got = run(model, dict(input_ids=np.array([tokens], np.int64), attention_mask=ones, token_type_ids=0 * ones))
            vector = got["last_hidden_state"][0].mean(0, dtype=np.float64)
            vector /= np.linalg.norm(vector)
            cases.append(dict(text=text, prompt=name, tokens=len(tokens), vector=[round(float(v), 6) for v in vector]))
    return cases


def main():
    from tokenizers import Tokenizer
    made = tiny_llm.make_tokenizer()
    for name in ("text", "speech", "decoder", "vectors", "genai_text", "genai_speech"):
        write(os.path.join(HERE, name, "tokenizer.json"), made, indent=None)
    tokenizer = Tokenizer.from_file(os.path.join(HERE, "text", "tokenizer.json"))
    text, text_long = make_text(tokenizer)
    write(os.path.join(HERE, "expected.json"), dict(text=text, text_long=text_long, speech=make_speech(), decoder=make_decoder(tokenizer), vectors=make_vectors(tokenizer)), indent=None)


if __name__ == "__main__":
    main()
