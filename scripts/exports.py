#!/usr/bin/env python3
"""Models of the transformers library with random weights, for `scripts/bench-gpu --models scripts/exports.py --zoo ZOO`.

usage: scripts/exports.py ZOO [NAME...]

writes ZOO/NAME/model.onnx by PyTorch's exporter by Dynamo, and test_data_set_0 with what PyTorch computes. Needs Python packages
torch, transformers, onnx and onnxscript.
"""
import pathlib
import sys

import torch
import transformers

SEED = 42
WHISPER_SMALL = dict(d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072, decoder_layers=1, num_mel_bins=80)


class Hidden(torch.nn.Module):
    """The last hidden state of a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).last_hidden_state


def of(name, x, part=lambda model: model, **settings):
    def make():
        config = transformers.AutoConfig.for_model(name, **settings)
        return Hidden(part(transformers.AutoModel.from_config(config)).float().eval()), [x()]
    return make


def models():
    def picture():
        return torch.randn(1, 3, 224, 224)

    return {
        "bert base; 128 tokens": of("bert", lambda: torch.randint(0, 30000, (1, 128))),
        "vit base; 224x224": of("vit", picture),
        "siglip base; 224x224": of("siglip_vision_model", picture),
        "dinov3 small; 224x224": of("dinov3_vit", picture),
        "whisper small; encoder": of("whisper", lambda: torch.randn(1, 80, 3000), lambda model: model.encoder, **WHISPER_SMALL),
    }


def export(zoo, name):
    from onnx import numpy_helper

    torch.manual_seed(SEED)
    module, inputs = models()[name]()
    folder = zoo / name
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        y = module(*inputs)
        torch.onnx.export(module, tuple(inputs), folder / "model.onnx", dynamo=True, external_data=False, input_names=["x"],
                          output_names=["y"])
    for file, tensor, called in (("input_0.pb", inputs[0], "x"), ("output_0.pb", y.contiguous(), "y")):
        (data / file).write_bytes(numpy_helper.from_array(tensor.numpy(), called).SerializeToString())


if __name__ == "__main__":
    for each in sys.argv[2:] or models():
        export(pathlib.Path(sys.argv[1]), each)
