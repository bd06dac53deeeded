#!/usr/bin/env python3
"""Exports tiny models of the transformers library by both exporters of PyTorch, with what PyTorch computes.

`make.py export` needs torch, transformers, onnx and onnxscript. It writes a folder for each model: model.onnx, io.json with the
inputs and the first output, and for text also config.json and tokenizer.json. Weights are random, in steps of 1/64: what the
models write is no language. `make.py convert` needs onnx and onnxruntime: it writes a folder for each model that is converted
to float16 (`-fp16`), or to codes of 4 bits and float16 (`-q4f16`), as for transformers.js, with what onnxruntime computes.
`make.py tokens` needs onnxruntime, and adds the tokens after a prompt to io.json, chosen by the largest logit in a loop of
onnxruntime. Folders end in `-ts` for the exporter by TorchScript and in `-dy` for that by Dynamo.
"""
import json
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY, LAYERS, PAST, NEW, PROMPT, TOKENS = 99, 2, 5, 3, [5, 17, 90, 44, 9], 40
SMALL = dict(
    hidden_size=32, n_embd=32, d_model=32, num_hidden_layers=LAYERS, n_layer=LAYERS, encoder_layers=LAYERS, num_attention_heads=4,
    n_head=4, num_key_value_heads=2, head_dim=8, encoder_attention_heads=4, intermediate_size=48, encoder_ffn_dim=48,
    vocab_size=VOCABULARY, max_position_embeddings=256, n_positions=256, sliding_window=64, decoder_layers=1,
    decoder_attention_heads=4, decoder_ffn_dim=48, image_size=32, patch_size=8, max_source_positions=20, num_mel_bins=8,
    max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
TEXT = ["llama-ts", "llama-dy", "qwen3-ts", "gemma3_text-dy", "phi-ts", "gpt2-ts", "cohere-dy"]
CONVERTED = ["gemma3_text-dy-fp16", "phi-ts-fp16", "llama-ts-q4f16"]
OTHER = {"bert-dy": ["input_ids", "attention_mask"], "siglip_vision_model-dy": ["pixel_values"], "whisper-dy": ["input_features"]}


def small(config):
    for name, value in SMALL.items():
        if getattr(config, name, None) is not None and not isinstance(getattr(config, name), (list, dict)):
            if not isinstance(getattr(type(config), name, None), property):
                setattr(config, name, value)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1] + config.layer_types[-1:]
    return config


def stepped(model, torch):
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() >= 2 and float(weight.std()) > 0:
                weight.data = (weight * (0.25 / float(weight.std())) * 64).round() / 64
    return model.eval().float()


def text(name, torch, transformers):
    """The model, its inputs by name, and the names of its outputs."""
    config = small(transformers.AutoConfig.for_model(name))
    model = stepped(transformers.AutoModelForCausalLM.from_config(config), torch)

    def flat(cache):
        return [part for layer in cache.layers for part in (layer.keys, layer.values)]

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask, position_ids, *past):
            cache = transformers.DynamicCache()
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            made = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                              past_key_values=cache, use_cache=True)
            return (made.logits, *flat(made.past_key_values))

    with torch.no_grad():
        past = flat(model(input_ids=torch.randint(3, VOCABULARY, (1, PAST)), use_cache=True).past_key_values)
    parts = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (1, NEW)), "attention_mask": torch.ones(1, PAST + NEW, dtype=torch.long),
              "position_ids": torch.arange(PAST, PAST + NEW)[None]}
    inputs.update({f"past_key_values.{part}": value.clone() for part, value in zip(parts, past)})
    axes = {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "total"},
            "position_ids": {0: "batch", 1: "tokens"}}
    axes.update({f"past_key_values.{part}": {0: "batch", 2: "past"} for part in parts})
    d = torch.export.Dim.DYNAMIC
    shapes = {"input_ids": {0: d, 1: d}, "attention_mask": {0: d, 1: d}, "position_ids": {0: d, 1: d},
              "past": tuple({0: d, 2: d} for _ in past)}
    about = dict(model_type=name, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=past[0].shape[1], head_dim=8,
                 hidden_size=32, max_position_embeddings=256, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2)
    if name == "gpt2":
        own = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd",
               "max_position_embeddings": "n_positions"}
        about = {own.get(key, key): value for key, value in about.items() if key not in ("head_dim", "num_key_value_heads")}
    return Step(), inputs, ["logits"] + [f"present.{part}" for part in parts], axes, shapes, about


def other(name, inputs, torch, transformers):
    config = small(transformers.AutoConfig.for_model(name))
    model = stepped(transformers.AutoModel.from_config(config), torch)
    model = model.encoder if name == "whisper" else model
    given = {"input_ids": torch.randint(3, VOCABULARY, (2, 9)), "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
             "pixel_values": torch.randn(1, 3, 32, 32), "input_features": torch.randn(1, 8, 40)}

    class Only(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *args):
            made = self.model(**dict(zip(inputs, args)))
            return made.last_hidden_state, *([made.pooler_output] if name.startswith("siglip") else [])

    names = ["last_hidden_state"] + (["pooler_output"] if name.startswith("siglip") else [])
    d = torch.export.Dim.DYNAMIC
    dynamic = name == "bert"
    shapes = (tuple({0: d, 1: d} for _ in inputs),) if dynamic else None
    axes = {n: {0: "batch", 1: "tokens"} for n in inputs} if dynamic else {}
    return Only(), {n: given[n] for n in inputs}, names, axes, shapes, None


def export(folder, torch, transformers):
    name, how = folder.rsplit("-", 1)
    torch.manual_seed(0)
    made = text(name, torch, transformers) if folder in TEXT else other(name, OTHER[folder], torch, transformers)
    module, inputs, outputs, axes, shapes, about = made
    module, args = module.eval(), tuple(inputs.values())
    place = os.path.join(HERE, folder)
    os.makedirs(place, exist_ok=True)
    file = os.path.join(place, "model.onnx")
    with torch.no_grad():
        expected = module(*args)
        if how == "ts":
            torch.onnx.export(module, args, file, dynamo=False, opset_version=17, input_names=list(inputs), output_names=outputs,
                              dynamic_axes=axes)
        else:
            torch.onnx.export(module, args, file, dynamo=True, external_data=False, input_names=list(inputs), output_names=outputs,
                              dynamic_shapes=shapes)
    plain(file)

    def values(tensor):
        return [round(float(x), 6) if tensor.is_floating_point() else int(x) for x in tensor.reshape(-1)]
    wanted = outputs if about is None else outputs[:1]
    io = {"inputs": {n: [list(t.shape), values(t)] for n, t in inputs.items()},
          "outputs": {n: [list(t.shape), values(t)] for n, t in zip(wanted, expected)}}
    write(place, "io.json", io)
    if about:
        write(place, "config.json", about)
        words = {"type": "WordLevel", "vocab": {f"t{i}": i for i in range(VOCABULARY)}, "unk_token": "t0"}
        write(place, "tokenizer.json", {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
                                        "model": words})
        write(place, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def plain(file):
    """Drops what exporters note about the program: stack traces and places of its files."""
    import onnx

    model = onnx.load(file)
    for part in [model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output,
                 *model.graph.initializer, *model.functions]:
        part.ClearField("doc_string")
        if hasattr(part, "metadata_props"):
            del part.metadata_props[:]
    del model.graph.value_info[:]
    onnx.save(model, file)


def write(place, name, value):
    with open(os.path.join(place, name), "w") as file:
        json.dump(value, file)
        file.write("\n")


def convert(folder, onnxruntime):
    """Inputs and outputs keep their types, as they do by default."""
    import shutil

    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from onnxruntime.transformers.float16 import convert_float_to_float16

    source, how = folder.rsplit("-", 1)
    source, place = os.path.join(HERE, source), os.path.join(HERE, folder)
    os.makedirs(place, exist_ok=True)
    model = onnx.load(os.path.join(source, "model.onnx"))
    if how == "q4f16":
        quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, accuracy_level=None)
        quantizer.process()
        model = quantizer.model.model
    model = convert_float_to_float16(model, keep_io_types=True, disable_shape_infer=True)
    file = os.path.join(place, "model.onnx")
    onnx.save(model, file)
    plain(file)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(source, name), place)
    with open(os.path.join(source, "io.json")) as text:
        inputs = json.load(text)["inputs"]
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    types = {i.name: np.float32 if i.type == "tensor(float)" else np.int64 for i in session.get_inputs()}
    feed = {n: np.array(values, types[n]).reshape(shape) for n, (shape, values) in inputs.items() if n in types}
    name = session.get_outputs()[0].name
    logits = session.run([name], feed)[0]
    values = [round(float(x), 6) for x in logits.reshape(-1)]
    write(place, "io.json", {"inputs": inputs, "outputs": {name: [list(logits.shape), values]}})


def tokens(folder, onnxruntime):
    place = os.path.join(HERE, folder)
    session = onnxruntime.InferenceSession(os.path.join(place, "model.onnx"), providers=["CPUExecutionProvider"])
    shapes = {i.name: i.shape for i in session.get_inputs()}
    past = {n: np.zeros([1, s[1], 0, s[3]], np.float32) for n, s in shapes.items() if n.startswith("past")}
    ids, new, made = list(PROMPT), list(PROMPT), []
    # Roundings of float16 may decide between logits that are this close: the text ends before.
    least, most = (0.005, 12) if folder in CONVERTED else (0.0, TOKENS)
    while len(made) < most:
        feed = {"input_ids": np.array([new]), "attention_mask": np.ones((1, len(ids)), np.int64),
                "position_ids": np.arange(len(ids) - len(new), len(ids))[None], **past}
        outputs = session.run(None, {n: v for n, v in feed.items() if n in shapes})
        outputs = dict(zip([o.name for o in session.get_outputs()], outputs))
        token = int(outputs["logits"][0, -1].argmax())
        second, first = np.sort(outputs["logits"][0, -1])[-2:]
        if first - second < least * max(1.0, abs(first)):
            break
        made.append(token)
        ids, new = ids + [token], [token]
        past = {n: outputs[n.replace("past_key_values", "present")] for n in past}
    with open(os.path.join(place, "io.json")) as file:
        io = json.load(file)
    io["prompt"], io["tokens"] = PROMPT, made
    write(place, "io.json", io)


def main(what):
    if what == "export":
        import torch
        import transformers
        for folder in [*TEXT, *OTHER]:
            export(folder, torch, transformers)
    elif what == "convert":
        import onnxruntime
        for folder in CONVERTED:
            convert(folder, onnxruntime)
    else:
        import onnxruntime
        for folder in [*TEXT, *CONVERTED]:
            tokens(folder, onnxruntime)


if __name__ == "__main__":
    main(sys.argv[1])
