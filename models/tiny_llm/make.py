#!/usr/bin/env python3
"""Makes the tiny language models of this folder, their tokenizer, and the tokens that onnxruntime gives.

The weights are random and seeded: what the models write is no language. `fixed` has the graph of onnxruntime-genai's
model builder (MatMulNBits, GroupQueryAttention), whose cache has a fixed length; `paged` has the same weights and a cache
in pages (PagedAttention), which onnxruntime has for CUDA alone, so its tokens are those of `fixed`; `appending` has plain operators and
appends to its cache, as exports of the transformers library do; `sliding` is such a graph whose tokens see only the last ones;
`growing` does so too, but reads only the length of its mask. Needs numpy, onnx, onnxruntime and tokenizers.
"""
import json
import math
import os
import re

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY = 320
MARKS = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
TEXT = """the quick brown fox jumps over the lazy dog and runs into the forest where other animals are sleeping in the
shade of the trees that stand on the hill over the river and there is nothing more than this in the whole story"""
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'].strip() }}"
            "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
PROMPTS = [
    ("Hello", 200),
    ("The quick brown fox jumps over the lazy dog, and then it runs into the forest; 17 other animals are sleeping there.", 32),
    ("\u65e5\u672c \u00fcber na\u00efve \U0001f980", 32),
]


def write(path, data, indent=1):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, indent=indent, ensure_ascii=False)
        f.write("\n")


# The tokenizer: bytes and the pairs that are most frequent in TEXT.


def byte_characters():
    """The printable character that stands for each byte, as in GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for byte in range(256):
        names[byte] = chr(byte) if byte in plain else chr(256 + extra)
        extra += byte not in plain
    return names


def make_tokenizer():
    names = byte_characters()
    words = [[names[b] for b in w.encode()] for w in re.findall(r" ?\w+", TEXT.replace("\n", " "))]
    vocabulary, merges = MARKS + [names[b] for b in range(256)], []
    while len(vocabulary) < VOCABULARY:
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        pair = min(counts, key=lambda p: (-counts[p], p))
        merges.append(" ".join(pair))
        vocabulary.append("".join(pair))
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == pair:
                    word[i:i + 2] = ["".join(pair)]
                i += 1
    marks = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, t in enumerate(MARKS)]
    first = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"Sequence": {"id": "B", "type_id": 1}}]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=marks, normalizer=None, pre_tokenizer=level,
                post_processor=dict(type="TemplateProcessing", single=first, pair=first + second,
                                    special_tokens={"<s>": dict(id="<s>", ids=[1], tokens=["<s>"])}),
                decoder=level,
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                           fuse_unk=False, byte_fallback=False, ignore_merges=False,
                           vocab={t: i for i, t in enumerate(vocabulary)}, merges=merges))


# The graphs.


class Graph:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def weight(self, name, value):
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def normal(self, name, shape, deviation, mean=0.0):
        return self.weight(name, (self.random.standard_normal(shape) * deviation + mean).astype(np.float32))

    def node(self, op, inputs, name, outputs=None, domain="", **attributes):
        outputs = outputs or [name]
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs[0]

    def integers(self, name, values):
        return self.weight(name, np.array(values, np.int64))

    def save(self, path, inputs, outputs):
        info = lambda all_: [helper.make_tensor_value_info(n, t, s) for n, t, s in all_]
        graph = helper.make_graph(self.nodes, "decoder", info(inputs), info(outputs), self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, ir_version=10, producer_name="onepool", opset_imports=opsets)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        onnx.save(model, path)


# Where the tokens of each sequence end, how many it has already, and its pages: names of onnxruntime-genai.
PAGED = ["cumulative_sequence_lengths", "past_sequence_lengths", "block_table"]
FIXED = dict(layers=2, hidden=64, heads=4, kv=2, ffn=128, context=512)


def make_fixed(path, paged=False):
    """With a cache of a fixed length, or `paged`: tokens without padding and a cache in pages."""
    g, c, block = Graph(7), FIXED, 32
    head, half = c["hidden"] // c["heads"], c["hidden"] // c["heads"] // 2

    def product(name, x, k, n, deviation):
        """x by codes of 4 bits with a scale for each 32 of them."""
        codes = g.random.integers(0, 256, (n, k // block, block // 2), dtype=np.uint8)
        scales = (deviation / 4.6 * g.random.uniform(0.7, 1.3, (n, k // block))).astype(np.float32)
        inputs = [x, g.weight(f"{name}.codes", codes), g.weight(f"{name}.scales", scales)]
        return g.node("MatMulNBits", inputs, name, domain="com.microsoft", K=k, N=n, bits=4, block_size=block)

    if not paged:
        total = g.node("ReduceSum", ["attention_mask", g.integers("axis", [1])], "valid", keepdims=0)
        last = g.node("Sub", [total, g.integers("one", [1])], "last")
        lens = g.node("Cast", [last], "lens", to=TensorProto.INT32)
        size = g.node("Gather", [g.node("Shape", ["attention_mask"], "mask_shape"), g.integers("second", 1)], "size", axis=0)
        total = g.node("Cast", [size], "total", to=TensorProto.INT32)
    inverse = 1.0 / 1e4 ** (np.arange(0, head, 2, dtype=np.float32) / head)
    angles = np.outer(np.arange(c["context"], dtype=np.float32), inverse)
    g.weight("cos", np.cos(angles).astype(np.float32))
    g.weight("sin", np.sin(angles).astype(np.float32))
    assert angles.shape[1] == half
    x = g.node("Gather", [g.normal("embedding", (VOCABULARY, c["hidden"]), 0.5), "input_ids"], "embed", axis=0)
    gain, deep, skip = 1 / math.sqrt(c["hidden"]), 1 / math.sqrt(2 * c["layers"]), None

    def norm(name, x, skip):
        scale = g.normal(f"{name}.scale", (c["hidden"],), 0.1, 1.0)
        if skip is None:
            return g.node("SimplifiedLayerNormalization", [x, scale], name, epsilon=1e-5, axis=-1, stash_type=1), x
        out = g.node("SkipSimplifiedLayerNormalization", [x, skip, scale], name, [name, "", "", f"{name}.sum"],
                     domain="com.microsoft", epsilon=1e-5)
        return out, f"{name}.sum"

    for i in range(c["layers"]):
        y, x = norm(f"layer{i}.norm", x, skip)
        width = (c["heads"] + 2 * c["kv"]) * head
        qkv = product(f"layer{i}.qkv", y, c["hidden"], width, 1.4 * gain)
        cache = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"]
        places = PAGED if paged else [lens, total]
        attention = g.node("PagedAttention" if paged else "GroupQueryAttention", [qkv, "", "", *cache, *places, "cos", "sin"],
                           f"layer{i}.attention", [f"layer{i}.attention", f"present.{i}.key", f"present.{i}.value"],
                           domain="com.microsoft", num_heads=c["heads"], kv_num_heads=c["kv"], scale=1 / math.sqrt(head), do_rotary=1)
        skip = product(f"layer{i}.out", attention, c["hidden"], c["hidden"], 2 * deep * gain)
        y, x = norm(f"layer{i}.norm2", x, skip)
        gate, up = (product(f"layer{i}.{p}", y, c["hidden"], c["ffn"], gain) for p in ("gate", "up"))
        y = g.node("Mul", [gate, g.node("Sigmoid", [gate], f"layer{i}.sigmoid")], f"layer{i}.swish")
        y = g.node("Mul", [y, up], f"layer{i}.gated")
        skip = product(f"layer{i}.down", y, c["ffn"], c["hidden"], 3 * deep / math.sqrt(c["ffn"]))
    scale = g.normal("final.scale", (c["hidden"],), 0.1, 1.0)
    x = g.node("SkipSimplifiedLayerNormalization", [x, skip, scale], "final", domain="com.microsoft", epsilon=1e-5)
    g.nodes.append(helper.make_node("Identity", [product("head", x, c["hidden"], VOCABULARY, 3 * gain)], ["logits"], name="logits"))
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    caches = [(i, part) for part in ("key", "value") for i in range(c["layers"])]
    inputs = [("input_ids", i64, ["batch", "tokens"]), ("attention_mask", i64, ["batch", "total"])]
    past, present = ["batch", c["kv"], "past", head], ["batch", c["kv"], "total", head]
    if paged:
        sizes = [["ends"], ["sequences"], ["sequences", "most_pages"]]
        inputs = [("input_ids", i64, ["tokens"]), *((n, TensorProto.INT32, s) for n, s in zip(PAGED, sizes))]
        past = present = ["pages", "rows", c["kv"], head]
    inputs += [(f"past_key_values.{i}.{p}", f32, past) for i, p in caches]
    outputs = [("logits", f32, [*inputs[0][2], VOCABULARY])]
    outputs += [(f"present.{i}.{p}", f32, present) for i, p in caches]
    g.save(os.path.join(path, "model.onnx"), inputs, outputs)
    known = {n: n for n, _, _ in inputs[:-2 * c["layers"]]}
    names = dict(inputs=dict(**known, past_key_names="past_key_values.%d.key",
                             past_value_names="past_key_values.%d.value"),
                 outputs=dict(logits="logits", present_key_names="present.%d.key", present_value_names="present.%d.value"))
    decoder = dict(filename="model.onnx", head_size=head, hidden_size=c["hidden"], num_attention_heads=c["heads"],
                   num_hidden_layers=c["layers"], num_key_value_heads=c["kv"], **names)
    write(os.path.join(path, "genai_config.json"),
          dict(model=dict(type="llama", vocab_size=VOCABULARY, context_length=c["context"], bos_token_id=1, eos_token_id=2,
                          pad_token_id=0, decoder=decoder),
               search=dict(do_sample=False, max_length=c["context"], num_beams=1, past_present_share_buffer=True)))


GROWING = dict(hidden=16, heads=2, ffn=32, context=128)


def make_growing(path):
    """One layer with learnt positions; the mask is that of the sizes, so that attention_mask gives its length alone."""
    g, c = Graph(11), GROWING
    head, gain = c["hidden"] // c["heads"], 1 / math.sqrt(c["hidden"])
    embedding = g.normal("embedding", (VOCABULARY, c["hidden"]), 1.0)
    x = g.node("Gather", [embedding, "input_ids"], "embed", axis=0)
    places = g.node("Gather", [g.normal("places", (c["context"], c["hidden"]), 1.5), "position_ids"], "place", axis=0)
    x = g.node("Add", [x, places], "sum")

    def product(name, x, k, n, deviation):
        return g.node("MatMul", [x, g.normal(f"{name}.weight", (k, n), deviation)], name)

    def heads_of(name):
        y = g.node("Reshape", [product(name, x, c["hidden"], c["hidden"], 1.5 * gain), "split"], f"{name}.split")
        return g.node("Transpose", [y], f"{name}.heads", perm=[0, 2, 1, 3])

    g.integers("split", [0, 0, c["heads"], head])
    q, k, v = (heads_of(name) for name in ("query", "key", "value"))
    keys = g.node("Concat", ["past_key_values.0.key", k], "keys", ["present.0.key"], axis=2)
    values = g.node("Concat", ["past_key_values.0.value", v], "values", ["present.0.value"], axis=2)
    scores = g.node("MatMul", [q, g.node("Transpose", [keys], "keys.turned", perm=[0, 1, 3, 2])], "scores")
    scores = g.node("Mul", [scores, g.weight("scale", np.float32(1 / math.sqrt(head)))], "scaled")
    total = g.node("Gather", [g.node("Shape", ["attention_mask"], "mask_shape"), g.integers("second", 1)], "total", axis=0)
    range_ = g.node("Range", [g.integers("zero", 0), total, g.integers("step", 1)], "range")
    seen = g.node("LessOrEqual", [range_, g.node("Unsqueeze", ["position_ids", g.integers("last", [2])], "rows")], "seen")
    seen = g.node("Unsqueeze", [seen, g.integers("of_heads", [1])], "seen.heads")
    scores = g.node("Where", [seen, scores, g.weight("never", np.float32(-1e9))], "masked")
    y = g.node("MatMul", [g.node("Softmax", [scores], "shares", axis=-1), values], "mixed")
    y = g.node("Reshape", [g.node("Transpose", [y], "mixed.turned", perm=[0, 2, 1, 3]), g.integers("join", [0, 0, c["hidden"]])], "joined")
    x = g.node("Add", [x, product("out", y, c["hidden"], c["hidden"], 1.5 * gain)], "sum2")
    y = g.node("Relu", [product("up", x, c["hidden"], c["ffn"], gain)], "relu")
    x = g.node("Add", [x, product("down", y, c["ffn"], c["hidden"], 1.5 / math.sqrt(c["ffn"]))], "sum3")
    g.node("MatMul", [x, g.node("Transpose", [embedding], "head", perm=[1, 0])], "logits")
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    inputs = [("input_ids", i64, ["batch", "tokens"]), ("attention_mask", i64, ["batch", "total"]), ("position_ids", i64, ["batch", "tokens"])]
    inputs += [(f"past_key_values.0.{p}", f32, ["batch", c["heads"], "past", head]) for p in ("key", "value")]
    outputs = [("logits", f32, ["batch", "tokens", VOCABULARY])]
    outputs += [(f"present.0.{p}", f32, ["batch", c["heads"], "total", head]) for p in ("key", "value")]
    g.save(os.path.join(path, "model.onnx"), inputs, outputs)
    write(os.path.join(path, "config.json"),
          dict(model_type="gpt2", num_hidden_layers=1, num_attention_heads=c["heads"], hidden_size=c["hidden"],
               max_position_embeddings=c["context"], vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2))


WINDOW = 72
APPENDING = dict(layers=2, hidden=32, heads=4, kv=2, ffn=64, context=512)


def make_appending(path, window=None):
    """A llama as exports of the transformers library have it: a mask of sizes and attention_mask, rotated by position_ids.

    A token sees itself and the `window` - 1 tokens before it."""
    g, c = Graph(13), APPENDING
    head, gain, deep = c["hidden"] // c["heads"], 1 / math.sqrt(c["hidden"]), 1 / math.sqrt(2 * c["layers"])
    least = float(np.finfo(np.float32).min)
    constants = {}

    def constant(name, values):
        if name not in constants:
            constants[name] = numpy_helper.from_array(np.array(values, np.int64), name)
            g.weights.append(constants[name])
        return name

    def ints(*values):
        return constant("ints_" + "_".join(map(str, values)), values)

    def scalar(value):
        return constant(f"int_{value}", value)

    def size(of, axis, name):
        return g.node("Gather", [g.node("Shape", [of], f"{name}.shape"), scalar(axis)], name, axis=0)

    past, new, total = size("past_key_values.0.key", 2, "past"), size("input_ids", 1, "new"), size("attention_mask", 1, "total")
    rows = g.node("Range", [past, g.node("Add", [past, new], "end"), scalar(1)], "rows")
    columns = g.node("Range", [scalar(0), total, scalar(1)], "columns")
    sides = [g.node("Unsqueeze", [n, ints(0)], f"{n}.size") for n in (new, total)]
    never = g.node("ConstantOfShape", [g.node("Concat", sides, "square", axis=0)], "never",
                   value=numpy_helper.from_array(np.array([least], np.float32)))
    column = g.node("Unsqueeze", [rows, ints(1)], "rows.column")
    later = g.node("Greater", [columns, column], "later")
    if window is not None:
        first = g.node("Sub", [column, scalar(window)], "first")
        later = g.node("Or", [later, g.node("LessOrEqual", [columns, first], "earlier")], "unseen")
    causal = g.node("Mul", [never, g.node("Cast", [later], "later.float", to=TensorProto.FLOAT)], "causal")
    causal = g.node("Unsqueeze", [causal, ints(0, 1)], "causal.4d")
    given = g.node("Cast", [g.node("Unsqueeze", ["attention_mask", ints(1, 2)], "given.4d")], "given", to=TensorProto.FLOAT)
    hidden = g.node("Equal", [g.node("Add", [causal, given], "both"), g.weight("nought", np.float32(0))], "hidden")
    mask = g.node("Where", [hidden, g.weight("least", np.float32(least)), causal], "mask")

    inverse = 1.0 / 1e4 ** (np.arange(0, head, 2, dtype=np.float32) / head)
    places = g.node("Cast", [g.node("Unsqueeze", ["position_ids", ints(1)], "places.row")], "places", to=TensorProto.FLOAT)
    angles = g.node("MatMul", [g.weight("inverse", inverse.reshape(1, -1, 1)), places], "angles.turned")
    angles = g.node("Transpose", [angles], "angles", perm=[0, 2, 1])
    angles = g.node("Concat", [angles, angles], "angles.twice", axis=-1)
    turns = [g.node("Unsqueeze", [g.node(f, [angles], f.lower()), ints(1)], f"{f.lower()}.heads") for f in ("Cos", "Sin")]

    def product(name, x, k, n, deviation):
        return g.node("MatMul", [x, g.normal(f"{name}.weight", (k, n), deviation)], name)

    def norm(name, x):
        square = g.node("ReduceMean", [g.node("Pow", [x, g.weight(f"{name}.two", np.float32(2))], f"{name}.square"), ints(-1)], f"{name}.mean")
        root = g.node("Sqrt", [g.node("Add", [square, g.weight(f"{name}.epsilon", np.float32(1e-5))], f"{name}.sum")], f"{name}.root")
        part = g.node("Div", [g.weight(f"{name}.one", np.float32(1)), root], f"{name}.part")
        return g.node("Mul", [g.normal(f"{name}.scale", (c["hidden"],), 0.1, 1.0), g.node("Mul", [x, part], f"{name}.unit")], name)

    def heads_of(name, x, heads, deviation):
        y = product(name, x, c["hidden"], heads * head, deviation)
        y = g.node("Reshape", [y, g.integers(f"{name}.sizes", [0, 0, heads, head])], f"{name}.split")
        return g.node("Transpose", [y], f"{name}.heads", perm=[0, 2, 1, 3])

    def rotated(name, x):
        halves = [g.node("Slice", [x, ints(a), ints(b), ints(3)], f"{name}.half{a}") for a, b in ((0, head // 2), (head // 2, head))]
        turned = g.node("Concat", [g.node("Neg", [halves[1]], f"{name}.neg"), halves[0]], f"{name}.turned", axis=-1)
        parts = [g.node("Mul", [v, t], f"{name}.by_{t}") for v, t in zip((x, turned), turns)]
        return g.node("Add", parts, f"{name}.rotated")

    def repeated(name, x):
        """Each head of keys or values for each of its queries."""
        shape = g.node("Shape", [x], f"{name}.shape")
        sizes = [g.node("Slice", [shape, ints(a), ints(b), ints(0)], f"{name}.sizes{a}") for a, b in ((0, 2), (2, 4))]
        wide = g.node("Concat", [sizes[0], ints(c["heads"] // c["kv"]), sizes[1]], f"{name}.wide", axis=0)
        y = g.node("Expand", [g.node("Unsqueeze", [x, ints(2)], f"{name}.one"), wide], f"{name}.each")
        return g.node("Reshape", [y, g.integers(f"{name}.joined", [0, c["heads"], -1, head])], f"{name}.repeated")

    embedding = g.normal("embedding", (VOCABULARY, c["hidden"]), 0.5)
    x = g.node("Gather", [embedding, "input_ids"], "embed", axis=0)
    for i in range(c["layers"]):
        name = f"layer{i}"
        y = norm(f"{name}.norm", x)
        q, k, v = (heads_of(f"{name}.{p}", y, n, 1.4 * gain) for p, n in (("q", c["heads"]), ("k", c["kv"]), ("v", c["kv"])))
        q, k = rotated(f"{name}.q", q), rotated(f"{name}.k", k)
        k, v = (g.node("Concat", [f"past_key_values.{i}.{p}", t], f"{name}.{p}s", [f"present.{i}.{p}"], axis=2)
                for p, t in (("key", k), ("value", v)))
        k, v = repeated(f"{name}.keys", k), repeated(f"{name}.values", v)
        scores = g.node("MatMul", [q, g.node("Transpose", [k], f"{name}.keys.turned", perm=[0, 1, 3, 2])], f"{name}.scores")
        scores = g.node("Div", [scores, g.weight(f"{name}.root", np.float32(math.sqrt(head)))], f"{name}.scaled")
        shares = g.node("Softmax", [g.node("Add", [scores, mask], f"{name}.masked")], f"{name}.shares", axis=-1)
        y = g.node("Transpose", [g.node("MatMul", [shares, v], f"{name}.mixed")], f"{name}.mixed.turned", perm=[0, 2, 1, 3])
        y = g.node("Reshape", [y, ints(0, 0, c["hidden"])], f"{name}.mixed.joined")
        x = g.node("Add", [x, product(f"{name}.out", y, c["hidden"], c["hidden"], 2 * deep * gain)], f"{name}.sum")
        y = norm(f"{name}.norm2", x)
        gate, up = (product(f"{name}.{p}", y, c["hidden"], c["ffn"], gain) for p in ("gate", "up"))
        y = g.node("Mul", [g.node("Mul", [gate, g.node("Sigmoid", [gate], f"{name}.sigmoid")], f"{name}.swish"), up], f"{name}.gated")
        x = g.node("Add", [x, product(f"{name}.down", y, c["ffn"], c["hidden"], 3 * deep / math.sqrt(c["ffn"]))], f"{name}.sum2")
    product("logits", norm("final", x), c["hidden"], VOCABULARY, 3 * gain)
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    caches = [(i, part) for i in range(c["layers"]) for part in ("key", "value")]
    inputs = [("input_ids", i64, ["batch", "tokens"]), ("attention_mask", i64, ["batch", "total"]), ("position_ids", i64, ["batch", "tokens"])]
    inputs += [(f"past_key_values.{i}.{p}", f32, ["batch", c["kv"], "past", head]) for i, p in caches]
    outputs = [("logits", f32, ["batch", "tokens", VOCABULARY])]
    outputs += [(f"present.{i}.{p}", f32, ["batch", c["kv"], "total", head]) for i, p in caches]
    g.save(os.path.join(path, "model.onnx"), inputs, outputs)
    write(os.path.join(path, "config.json"),
          dict(model_type="llama", num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv"],
               hidden_size=c["hidden"], max_position_embeddings=c["context"], vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2,
               **({} if window is None else dict(sliding_window=window))))


def expected(path, layers, kv, head, tokenizer, most):
    """Greedy tokens of onnxruntime with a growing cache, without stopping at the end mark."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.path.join(path, "model.onnx"), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    cases, least = [], math.inf
    for text, count in PROMPTS:
        prompt = tokenizer.encode(text).ids
        cache = {n: np.zeros((1, kv, 0, head), np.float32) for n in names if n.startswith("past")}
        new, tokens = prompt, []
        for _ in range(min(count, most)):
            past = next(iter(cache.values())).shape[2]
            feeds = dict(input_ids=np.array([new], np.int64), attention_mask=np.ones((1, past + len(new)), np.int64),
                         position_ids=np.arange(past, past + len(new), dtype=np.int64)[None], **cache)
            got = dict(zip([o.name for o in session.get_outputs()], session.run(None, {n: feeds[n] for n in names})))
            cache = {n: got[n.replace("past_key_values", "present")] for n in cache}
            row = got["logits"][0, -1]
            ranked = np.sort(row)
            least = min(least, float(ranked[-1] - ranked[-2]))
            tokens.append(int(row.argmax()))
            new = tokens[-1:]
        cases.append(dict(prompt=text, prompt_tokens=prompt, tokens=tokens))
    assert least > 2e-3, f"{path}: two tokens are {least} apart: take another seed"
    print(f"{path}: the closest two tokens are {least:.4f} apart; {[len(set(c['tokens'])) for c in cases]} different tokens")
    return cases


def main():
    from tokenizers import Tokenizer
    tokenizer = make_tokenizer()
    for name in ("fixed", "paged", "appending", "sliding", "growing"):
        folder = os.path.join(HERE, name)
        write(os.path.join(folder, "tokenizer.json"), tokenizer)
        write(os.path.join(folder, "tokenizer_config.json"), dict(bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE))
    make_fixed(os.path.join(HERE, "fixed"))
    make_fixed(os.path.join(HERE, "paged"), paged=True)
    make_appending(os.path.join(HERE, "appending"))
    make_appending(os.path.join(HERE, "sliding"), WINDOW)
    make_growing(os.path.join(HERE, "growing"))
    tokens = Tokenizer.from_file(os.path.join(HERE, "fixed", "tokenizer.json"))
    f, a, g = FIXED, APPENDING, GROWING
    write(os.path.join(HERE, "expected.json"), dict(
        fixed=expected(os.path.join(HERE, "fixed"), f["layers"], f["kv"], f["hidden"] // f["heads"], tokens, 200),
        appending=expected(os.path.join(HERE, "appending"), a["layers"], a["kv"], a["hidden"] // a["heads"], tokens, 200),
        sliding=expected(os.path.join(HERE, "sliding"), a["layers"], a["kv"], a["hidden"] // a["heads"], tokens, 200),
        growing=expected(os.path.join(HERE, "growing"), 1, g["heads"], g["hidden"] // g["heads"], tokens, 24)), indent=None)


if __name__ == "__main__":
    main()
