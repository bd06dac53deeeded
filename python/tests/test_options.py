"""Options of sessions, what models say of themselves, and variables of chat templates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onepool
from conftest import conv, double
from onepool.generate import Embedder, Generator

MODELS = Path(__file__).parents[2] / "models"
X = np.ones((2, 3), np.float32)

ALL: dict[str, Any] = {
    "activations": "exact",
    "integers": "never",
    "coarse_filter": True,
    "fuse": False,
    "placement": "auto",
    "placement_seconds": 0.01,
    "place_operators": {"Conv": 0},
    "tuning": 0.01,
    "submission_limit": 0.001,
    "wait": "block",
    "priority": "normal",
    "robustness": "all",
    "any_device": True,
    "map_weights": True,
}


def test_options_are_taken_and_results_stay(device: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    x = {"x": np.ones((1, 8, 8, 8), np.float32)}
    expected = onepool.Session(conv(), device=device).run(x)["y"]
    session = onepool.Session(conv(), device=device, tuning_dir=tmp_path, **ALL)
    np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-4)


def test_nodes_go_where_they_are_placed() -> None:
    made = double()
    made.graph.node[0].name = "sum"
    for places in ({"place_nodes": {"sum": 1}}, {"place_operators": {"Add": 1}}, {"place_rest": 1}):
        session = onepool.Session(made, device=["sim", "cpu"], **places)  # type: ignore[arg-type]
        with session.bind({"x": X}) as binding:
            binding.run()
            assert [node["device"] for node in binding.plan.report["nodes"]] == [1]


@pytest.mark.parametrize(
    ("options", "base", "says"),
    [
        ({"activations": "some"}, ValueError, 'activations: "some" is none of "allowed", "exact"'),
        ({"integers": "some"}, ValueError, "integers"),
        ({"wait": "long"}, ValueError, "wait"),
        ({"priority": "mine"}, ValueError, "priority"),
        ({"robustness": "some"}, ValueError, "robustness"),
        ({"tuning": "often"}, ValueError, 'tuning: "often" is neither'),
        ({"tuning": -1}, ValueError, "tuning: -1 is no number of seconds"),
        ({"tuning": []}, TypeError, "tuning"),
        ({"placement_seconds": float("nan")}, ValueError, "placement_seconds: NaN"),
        ({"submission_limit": "soon"}, ValueError, 'submission_limit: "soon"'),
        ({"submission_limit": 1e9}, ValueError, "submission_limit: 1000000000"),
        ({"coarse_filter": "yes"}, TypeError, "coarse_filter"),
        ({"fuse": None}, TypeError, "fuse"),
        ({"place_nodes": {"no such node": 0}}, ValueError, "no such node"),
        ({"place_nodes": ["x"]}, TypeError, "place_nodes: expected devices by name"),
        ({"place_operators": {"Add": 70}}, ValueError, "70"),
        ({"place_operators": {"Add": -1}}, ValueError, r"place_operators\['Add'\] is -1"),
        ({"place_operators": {7: 0}}, TypeError, "place_operators"),
        ({"place_rest": 1 << 40}, ValueError, "place_rest"),
        ({"params": "no/such/file"}, ValueError, "parameters of a file are those of a model that is a file"),
        ({"speed": 2}, TypeError, "unknown options: speed"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any], base: type[Exception], says: str) -> None:
    with pytest.raises(base, match=says) as raised:
        onepool.Session(double(), device="cpu", **options)
    assert isinstance(raised.value, onepool.Error)


def test_generators_and_embedders_have_the_same_options() -> None:
    model = MODELS / "tiny_llm" / "fixed"
    expected = Generator(model, device="cpu").generate("Hello", max_tokens=8, temperature=0).tokens
    generator = Generator(model, device="cpu", activations="exact", fuse=False, wait="block")
    assert generator.generate("Hello", max_tokens=8, temperature=0).tokens == expected
    with pytest.raises(onepool.ArgumentError, match="wait"):
        Generator(model, wait="long")  # type: ignore[arg-type]
    vectors = MODELS / "tiny_seq2seq" / "vectors"
    assert Embedder(vectors, device="cpu", fuse=False).embed("a").vectors.shape[0] == 1
    with pytest.raises(onepool.ArrayTypeError, match="unknown options: speed"):
        Embedder(vectors, speed=2)  # type: ignore[call-arg]


def test_models_say_what_they_are() -> None:
    made = double()
    made.producer_name, made.producer_version, made.domain = "p", "2", "org.example"
    made.model_version, made.doc_string, made.graph.doc_string = 7, "a model", "a graph"
    onnx.helper.set_model_props(made, {"names": "{0: 'cat'}", "empty": ""})
    session = onepool.Session(made, device="cpu")
    said = session.metadata
    assert said == session.get_modelmeta() and isinstance(said, onepool.Metadata)
    assert (said.format, said.ir_version, said.graph_name) == ("ONNX", 10, "test")
    assert (said.producer_name, said.producer_version, said.domain, said.version) == ("p", "2", "org.example", 7)
    assert (said.description, said.graph_description, said.opsets) == ("a model", "a graph", {"": 21})
    assert said.custom_metadata_map == {"names": "{0: 'cat'}", "empty": ""}
    session.close()
    with pytest.raises(onepool.ClosedError):
        session.metadata
    said = Generator(MODELS / "tiny_gguf" / "qwen3.gguf", device="cpu").metadata
    assert said.format == "GGUF" and said.ir_version == 3
    assert said.custom_metadata_map["general.architecture"] == "qwen3"
    assert said.custom_metadata_map["tokenizer.ggml.tokens"].endswith(" texts")


@pytest.fixture
def variants(tmp_path: Path) -> Path:
    """A folder as transformers.js has them, whose template has variables."""
    for file in (MODELS / "tiny_llm" / "fixed").iterdir():
        if file.suffix == ".json":
            shutil.copy(file, tmp_path)
    (tmp_path / "onnx").mkdir()
    shutil.copy(MODELS / "tiny_llm" / "fixed" / "model.onnx", tmp_path / "onnx" / "model_q4f16.onnx")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ x }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


def test_templates_have_variables_and_folders_have_variants(variants: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    generator = Generator(
        variants, device="cpu", variant="q4f16", template_args={"tools": [{"b": 1, "a": 2}], "x": "!"}
    )
    text = 'Hello[{"b": 1, "a": 2}]!'
    assert generator.tokens(chat) == generator.tokens(text)[1:]
    assert generator.generate(chat, max_tokens=2).tokens
    with pytest.raises(FileNotFoundError, match="model_q8.onnx"):
        Generator(variants, device="cpu", variant="q8")
    with pytest.raises(onepool.UnsupportedError, match="variant"):
        Generator(variants, device="cpu", variant="../x")
    with pytest.raises(onepool.ArgumentError, match="template_args: .*messages"):
        Generator(variants, device="cpu", template_args={"messages": []})
    with pytest.raises(onepool.ArrayTypeError, match="template_args"):
        Generator(variants, device="cpu", template_args={"x": object()})
    with pytest.raises(onepool.ArrayTypeError, match="template_args"):
        Generator(variants, device="cpu", template_args=[1])  # type: ignore[arg-type]
