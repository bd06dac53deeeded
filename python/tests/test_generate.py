"""Text from the tiny models of the repository: the tokens are those of onnxruntime."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import onepool
from onepool.generate import Embedder, Features, Generator

MODELS = Path(__file__).parents[2] / "models"
LLM = MODELS / "tiny_llm"
EXPECTED = json.loads((LLM / "expected.json").read_text())


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(LLM / "fixed", device="cpu")


@pytest.mark.parametrize("name", ["fixed", "growing"])
def test_the_tokens_are_the_expected_ones(device: str, name: str) -> None:
    generator = Generator(LLM / name, device=device)
    assert len(generator.devices) >= 1 and str(generator.context) in repr(generator)
    for case in EXPECTED[name][:2]:
        text = generator.stream(case["prompt"], max_tokens=20, ignore_end=True, temperature=0)
        pieces = list(text)
        made = text.result()
        assert made.tokens == case["tokens"][:20]
        assert "".join(pieces) == made.text and len(pieces) > 1
        assert (made.prompt_tokens, made.finish) == (len(case["prompt_tokens"]), "length")
        assert generator.tokens(case["prompt"]) == case["prompt_tokens"]
        # The same from tokens, in one call.
        again = generator.generate(case["prompt_tokens"], max_tokens=20, ignore_end=True, temperature=0)
        assert again.tokens == made.tokens and again.tokens_per_second > 0
    assert generator.remarks == []
    assert (generator.cache_bytes is None) == (name == "growing")


def test_a_gguf_file() -> None:
    expected = json.loads((MODELS / "tiny_gguf" / "expected.json").read_text())
    generator = Generator(MODELS / "tiny_gguf" / "llama.gguf", device="cpu")
    case = expected["llama"]
    assert generator.tokens(case["prompt"]) == case["prompt_tokens"]
    made = generator.generate(case["prompt"], max_tokens=4, temperature=0, ignore_end=True)
    assert made.tokens == case["tokens"][:4] and made.finish == "length"


def test_sampling_is_repeated_by_its_seed(generator: Generator) -> None:
    texts = [generator.generate("Hello", max_tokens=30, temperature=0.9, top_k=40, seed=seed, ignore_end=True) for seed in (3, 3, 4)]
    assert texts[0].tokens == texts[1].tokens != texts[2].tokens
    greedy = generator.generate("Hello", max_tokens=30, ignore_end=True)
    assert greedy.tokens != texts[0].tokens
    assert generator.generate("Hello", max_tokens=30, top_k=1, ignore_end=True).tokens == greedy.tokens
    penalized = generator.generate("Hello", max_tokens=30, repetition_penalty=1.8, ignore_end=True)
    assert len(set(penalized.tokens)) > len(set(greedy.tokens))


def test_strings_end_a_text(generator: Generator) -> None:
    whole = generator.generate("Hello", max_tokens=40, ignore_end=True).text
    stop = whole[len(whole) // 2 :][:2]
    made = generator.generate("Hello", max_tokens=40, ignore_end=True, stop=["never there", stop])
    assert made.finish == "stop" and made.text == whole[: whole.index(stop)]
    assert generator.generate("Hello", max_tokens=40, ignore_end=True, stop=stop).text == made.text


def test_chats(generator: Generator) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    tokens = generator.tokens(messages)
    assert len(tokens) > len(generator.tokens("Hello"))
    made = generator.generate(messages, max_tokens=10, ignore_end=True)
    assert made.prompt_tokens == len(tokens)
    assert made.tokens == generator.generate(tokens, max_tokens=10, ignore_end=True).tokens
    # Fields that the template does not read change nothing.
    assert generator.tokens([messages[0], {**messages[1], "tool_calls": [{"id": 1}], "name": None}]) == tokens


def test_a_text_is_given_up(generator: Generator) -> None:
    with generator.stream("Hello", ignore_end=True) as text:
        next(text)
    assert list(text) == []
    assert text.result().finish == "cancelled"
    # Dropped in the middle: the next one begins after its end.
    iterator = generator.stream("Hello", ignore_end=True)
    next(iterator)
    del iterator
    assert len(generator.generate("Hello", max_tokens=3, ignore_end=True).tokens) == 3


def test_one_text_at_a_time(generator: Generator) -> None:
    text = generator.stream("Hello", ignore_end=True)
    next(text)
    with pytest.raises(onepool.BusyError, match="another text"):
        generator.stream("Hello")
    with pytest.raises(onepool.BusyError, match="another text"):
        generator.tokens("Hello")
    text.close()
    assert generator.tokens("Hello")


def test_other_threads_run_meanwhile(generator: Generator) -> None:
    counted = 0
    over = threading.Event()

    def count() -> None:
        nonlocal counted
        while not over.is_set():
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    generator.generate("Hello", max_tokens=20, ignore_end=True)
    over.set()
    thread.join()
    assert counted > 1000


def test_bad_input(generator: Generator, tmp_path: Path) -> None:
    with pytest.raises(onepool.ModelError, match="none of"):
        Generator(tmp_path)
    with pytest.raises(onepool.Error):
        Generator(tmp_path / "nothing.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(range(200)))
    with pytest.raises(onepool.ModelError):
        Generator(tmp_path / "bad.gguf")
    with pytest.raises(onepool.NoDeviceError):
        Generator(LLM / "fixed", device="nothing")
    with pytest.raises(onepool.ArgumentError, match="context"):
        Generator(LLM / "fixed", device="cpu", context=1 << 40)
    for settings in ({"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 2.0}, {"repetition_penalty": 0.0}):
        with pytest.raises(onepool.ArgumentError, match="expected"):
            generator.stream("Hello", **settings)  # type: ignore[arg-type]
    for prompt in (3, b"Hello", [1, "a"], [{"role": "user"}], [-1], [1 << 40], [1, {"role": "user", "content": "x"}]):
        with pytest.raises(TypeError, match="prompt"):
            generator.stream(prompt)  # type: ignore[arg-type]
    for prompt in ([{"content": "x"}], [{"role": {1}, "content": "x"}]):
        with pytest.raises(TypeError, match="prompt"):
            generator.stream(prompt)  # type: ignore[arg-type]
    for empty in ([], ""):
        if generator.tokens("") == [] or empty == []:
            with pytest.raises(onepool.ArgumentError, match="empty"):
                generator.generate(empty)
    with pytest.raises(onepool.ArgumentError, match="tokens"):
        generator.generate("Hello " * 20000)
    with pytest.raises(onepool.Error, match="token 4000000000"):
        generator.generate([4_000_000_000])
    # It goes on after each of these.
    assert generator.generate("Hello", max_tokens=2, ignore_end=True).tokens == EXPECTED["fixed"][0]["tokens"][:2]


def test_ctrl_c_ends_a_text() -> None:
    program = """
import os, signal, sys, threading
from onepool.generate import Generator

generator = Generator(sys.argv[1], device="cpu")
for run in (lambda: generator.generate("Hello", ignore_end=True), lambda: list(generator.stream("Hello", ignore_end=True))):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        while True:
            run()
    except KeyboardInterrupt:
        print("interrupted")
    assert generator.generate("Hello", max_tokens=2, ignore_end=True).finish == "length"
"""
    # Whoever starts the tests may have it ignored.
    before = signal.getsignal(signal.SIGINT)
    began = time.monotonic()
    command = [sys.executable, "-c", program, str(LLM / "growing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted"] * 2 and time.monotonic() - began < 120
    assert signal.getsignal(signal.SIGINT) is before


def test_encoders_read_text_and_features() -> None:
    folder = MODELS / "tiny_seq2seq"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    text = Generator(folder / "text", device="cpu")
    case = expected["text"][1]
    assert text.generate(case["prompt"], max_tokens=12, ignore_end=True).tokens == case["tokens"]
    speech, genai = (Generator(folder / name, device="cpu") for name in ("speech", "genai_speech"))
    for case in expected["speech"]:
        features = np.array(case["features"], np.float32).reshape(1, 4, 16)
        prompt = Features(features, case["prompt_tokens"])
        wanted = case["tokens"]
        for generator in (speech, genai):
            assert generator.generate(prompt, max_tokens=len(wanted), ignore_end=True).tokens == wanted
    with pytest.raises(onepool.ArgumentError, match="encoder's input"):
        speech.generate(Features(np.zeros((1, 4, 15), np.float32)))
    with pytest.raises(onepool.ArgumentError, match="give the prompt as such"):
        text.generate(Features(np.zeros((1, 4, 16), np.float32)))


def test_texts_have_vectors() -> None:
    folder = MODELS / "tiny_seq2seq"
    cases = [c for c in json.loads((folder / "expected.json").read_text(encoding="utf-8"))["vectors"] if c["prompt"] == "query"]
    embedder = Embedder(folder / "vectors", device="cpu")
    assert (embedder.prompts, embedder.max_tokens) == (["passage", "query"], 40)
    made = embedder.embed([case["text"] for case in cases], prompt="query")
    assert made.vectors.dtype == np.float32
    np.testing.assert_allclose(made.vectors, [case["vector"] for case in cases], atol=2e-5)
    assert (made.tokens, made.cut) == ([case["tokens"] for case in cases], [len(cases) - 1])
    assert embedder.embed("Hello", dims=4).vectors.shape == (1, 4)
    with pytest.raises(TypeError, match="texts: expected texts, got NoneType"):
        embedder.embed([None])  # type: ignore[list-item]
    with pytest.raises(onepool.ArgumentError, match='prompt is "answer"'):
        embedder.embed(["Hello"], prompt="answer")
    with pytest.raises(onepool.UnsupportedError, match="has the outputs"):
        Embedder(MODELS / "tiny_llm" / "fixed")
