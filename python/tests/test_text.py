"""Texts that a grammar holds, guesses, conversations in files, and texts that come and go."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

import onepool
from onepool.generate import Batch, BatchCounts, Generated, Generator

MODELS = Path(__file__).parents[2] / "models"
LLM = MODELS / "tiny_llm"
EXPECTED = json.loads((LLM / "expected.json").read_text())
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "age", "tags"],
    "properties": {
        "name": {"type": "string", "maxLength": 8, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(LLM / "fixed", device="cpu")


def fits(text: str) -> bool:
    value = json.loads(text)
    return (
        value.keys() == {"name", "age", "tags"}
        and re.fullmatch("[a-z]{1,8}", value["name"]) is not None
        and 0 <= value["age"] <= 120
        and len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "b"}
    )


def test_grammars_hold_texts(device: str) -> None:
    generator = Generator(LLM / "fixed", device=device)
    for seed in range(2):
        noise: dict[str, Any] = {"temperature": 1.5, "seed": seed, "max_tokens": 200}
        made = generator.generate("Hello", json_schema=SCHEMA, **noise)
        assert fits(made.text) and made.finish in ("grammar", "end")
        assert generator.generate("Hello", json_schema=json.dumps(SCHEMA), **noise).text == made.text
        made = generator.generate("Hello", regex="[0-9]{4}-(0[1-9]|1[0-2])", **noise)
        assert re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])", made.text) and made.finish == "grammar"
        made = generator.generate("Hello", grammar='start: NUMBER ("+" NUMBER){1,3}\nNUMBER: /[1-9][0-9]?/', **noise)
        assert 2 <= len(made.text.split("+")) <= 4 and all(1 <= int(n) <= 99 for n in made.text.split("+"))


@pytest.mark.parametrize("name", ["fixed", "appending"])
def test_guesses_leave_texts_as_they_are(device: str, name: str) -> None:
    case = EXPECTED[name][1]
    settings: dict[str, Any] = {"max_tokens": 20, "ignore_end": True, "temperature": 0}
    plain = Generator(LLM / name, device=device).generate(case["prompt"], **settings)
    assert plain.tokens == case["tokens"][:20]
    assert (plain.guessed_tokens, plain.accepted_tokens, plain.reused_tokens) == (0, 0, 0)
    drafting = Generator(LLM / name, device=device, draft=LLM / name, draft_tokens=3)
    made = drafting.generate(case["prompt"], **settings)
    # It guesses what it would choose.
    assert made.tokens == plain.tokens and made.accepted_tokens == made.guessed_tokens > 0


def test_looked_up_tokens_leave_the_text_as_it_is(generator: Generator) -> None:
    accepted = 0
    for case in EXPECTED["fixed"]:
        made = generator.generate(case["prompt"], max_tokens=len(case["tokens"]), ignore_end=True, lookup=6)
        assert made.tokens == case["tokens"]
        assert made.accepted_tokens <= made.guessed_tokens
        accepted += made.accepted_tokens
    assert accepted > 0


def test_tokens_are_the_same_wherever_they_are_chosen(device: str) -> None:
    case = EXPECTED["fixed"][0]
    settings: dict[str, Any] = {"max_tokens": 12, "ignore_end": True}
    host = Generator(LLM / "fixed", device=device, sample_on="host")
    there = Generator(LLM / "fixed", device=device, sample_on="device")
    for generator in (host, there):
        assert generator.generate(case["prompt"], temperature=0, **settings).tokens == case["tokens"][:12]
    drawn: dict[str, Any] = {"temperature": 0.7, "top_k": 5, "seed": 3, **settings}
    assert host.generate(case["prompt"], **drawn).tokens == there.generate(case["prompt"], **drawn).tokens
    held: dict[str, Any] = {"regex": "[xyz]{7}", **drawn}
    assert host.generate(case["prompt"], **held).text == there.generate(case["prompt"], **held).text


def test_conversations_go_on_from_the_cache_and_from_a_file(device: str, tmp_path: Path) -> None:
    generator = Generator(LLM / "fixed", device=device)
    case = EXPECTED["fixed"][0]
    settings: dict[str, Any] = {"max_tokens": 6, "ignore_end": True, "temperature": 0}
    generator.generate(case["prompt_tokens"], **{**settings, "max_tokens": 8})
    file = tmp_path / "chat"
    generator.save(file)
    longer = case["prompt_tokens"] + case["tokens"][:8]
    assert generator.generate(longer, **settings).reused_tokens == 0
    generator.generate(case["prompt_tokens"], **settings)
    kept = generator.generate(longer, reuse=True, **settings)
    other = Generator(LLM / "fixed", device=device)
    assert other.restore(file) == len(longer) - 1
    restored = other.generate(longer, reuse=True, **settings)
    assert kept.tokens == restored.tokens == case["tokens"][8:14]
    assert kept.reused_tokens > 0 and restored.reused_tokens == len(longer) - 1 < restored.prompt_tokens


def test_damaged_and_foreign_files_are_errors(generator: Generator, tmp_path: Path) -> None:
    generator.generate("Hello", max_tokens=4, ignore_end=True)
    file = tmp_path / "chat"
    generator.save(file)
    whole = file.read_bytes()
    for bad in (b"", whole[:-9], whole[:200] + b"\x07" + whole[201:], whole + b"\0"):
        file.write_bytes(bad)
        with pytest.raises(onepool.ArgumentError, match="damaged"):
            generator.restore(file)
    file.write_bytes(whole)
    with pytest.raises(onepool.ArgumentError, match="of another model"):
        Generator(LLM / "growing", device="cpu").restore(file)
    with pytest.raises(onepool.ModelError, match="nothing"):
        generator.restore(tmp_path / "nothing")
    with pytest.raises(onepool.ModelError, match="nowhere"):
        generator.save(tmp_path / "nowhere" / "chat")
    assert generator.restore(file) > 0


@pytest.mark.parametrize("name", ["fixed", "appending", "growing", "paged"])
def test_texts_that_come_and_go_are_those_made_one_by_one(device: str, name: str) -> None:
    cases = EXPECTED["fixed" if name == "paged" else name]
    generator = Generator(LLM / name, device=device)
    pieces: dict[int, str] = {}
    lengths: dict[int, int] = {}
    made: dict[int, Generated] = {}

    def add(number: int, tokens: int) -> None:
        def told(piece: str) -> None:
            pieces[number] = pieces.get(number, "") + piece

        prompt = cases[number % len(cases)]["prompt"]
        assert batch.add(prompt, on_piece=told, max_tokens=tokens, ignore_end=True, temperature=0) == number
        lengths[number] = tokens

    with generator.batch(texts=2, step_tokens=12) as batch:
        assert batch.idle and batch.step() == []
        for number, tokens in enumerate((9, 17, 4)):
            add(number, tokens)
        for _ in range(4):
            made.update(batch.step())
        add(3, 12)
        made.update(batch)
        assert batch.idle and not batch.closed
        counts = batch.counts
        assert isinstance(counts, BatchCounts) and counts.most_texts == 2 and counts.steps > 12
    assert batch.closed and made.keys() == lengths.keys()
    for number, text in made.items():
        assert text.tokens == cases[number % len(cases)]["tokens"][: lengths[number]]
        assert (text.finish, text.text) == ("length", pieces[number])
    # The generator is free.
    assert generator.generate(cases[0]["prompt"], max_tokens=3, ignore_end=True).tokens == cases[0]["tokens"][:3]


def test_all_at_once(generator: Generator) -> None:
    cases = EXPECTED["fixed"]
    made = generator.generate_all([case["prompt"] for case in cases], texts=2, max_tokens=7, ignore_end=True)
    assert [text.tokens for text in made] == [case["tokens"][:7] for case in cases]
    held = generator.generate_all(["Hello", [1, 78]], regex="(ab){3}")
    assert [text.text for text in held] == ["ababab", "ababab"]
    assert generator.generate_all([]) == []
    with pytest.raises(onepool.ArgumentError, match="grammar"):
        generator.generate_all(["Hello"], regex="(")
    assert generator.generate("Hello", max_tokens=2, ignore_end=True).finish == "length"


def test_a_generator_in_a_batch_is_busy(generator: Generator, tmp_path: Path) -> None:
    stream = generator.stream("Hello", ignore_end=True)
    next(stream)
    with pytest.raises(onepool.BusyError, match="another text"):
        generator.batch()
    # Given up, it ends before the batch begins.
    del stream
    batch = generator.batch()
    for use in (
        lambda: generator.stream("Hello"),
        lambda: generator.tokens("Hello"),
        lambda: generator.batch(),
        lambda: generator.save(tmp_path / "chat"),
        lambda: generator.restore(tmp_path / "chat"),
    ):
        with pytest.raises(onepool.BusyError, match="a batch"):
            use()
    batch.add("Hello", ignore_end=True)
    batch.step()
    batch.close()
    batch.close()
    assert generator.tokens("Hello")
    # One that is dropped is closed.
    generator.batch().add("Hello")
    assert generator.tokens("Hello")


def test_one_text_of_a_batch_is_cancelled(generator: Generator) -> None:
    with generator.batch(texts=2) as batch:
        first, second, third = (batch.add("Hello", max_tokens=9, ignore_end=True) for _ in range(3))
        batch.step()
        batch.cancel(first)
        batch.cancel(third)
        made = dict(batch)
        assert [made[text].finish for text in (first, second, third)] == ["cancelled", "length", "cancelled"]
        assert made[third].tokens == [] and made[second].tokens == EXPECTED["fixed"][0]["tokens"][:9]
        for gone in (first, 99):
            with pytest.raises(onepool.ArgumentError, match=f"text {gone}"):
                batch.cancel(gone)


def test_what_is_raised_while_pieces_are_told_loses_no_text(generator: Generator) -> None:
    told: list[str] = []

    def once(piece: str) -> None:
        told.append(piece)
        if len(told) == 1:
            raise RuntimeError("mine")

    with generator.batch() as batch:
        first = batch.add("Hello", max_tokens=1, ignore_end=True, on_piece=once)
        second = batch.add("Hello", max_tokens=1, ignore_end=True, on_piece=told.append)
        with pytest.raises(RuntimeError, match="mine"):
            batch.step()
        assert not batch.idle
        made = dict(batch)
        assert [made[text].text for text in (first, second)] == told


def test_other_threads_add_texts_meanwhile(generator: Generator) -> None:
    prompts = [case["prompt"] for case in EXPECTED["fixed"]] * 2
    made: dict[int, Generated] = {}
    numbers: dict[int, str] = {}
    with generator.batch(texts=3) as batch:

        def add() -> None:
            for prompt in prompts:
                numbers[batch.add(prompt, max_tokens=5, ignore_end=True)] = prompt

        threads = [threading.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or not batch.idle:
            made.update(batch.step())
        for thread in threads:
            thread.join()
        made.update(batch)
    expected = {case["prompt"]: case["tokens"][:5] for case in EXPECTED["fixed"]}
    assert made.keys() == numbers.keys() and len(made) == 3 * len(prompts)
    assert all(text.tokens == expected[numbers[number]] for number, text in made.items())


def test_texts_fork_and_generators_have_pages_in_common(device: str, tmp_path: Path) -> None:
    first = Generator(LLM / "paged", device=device, pages=48, page_tokens=4)
    second = Generator(LLM / "paged", device=device, pages_of=first)
    counts = first.page_counts
    assert counts is not None and (counts.pages, counts.page_tokens, counts.free) == (48, 4, 48)
    case = EXPECTED["fixed"][1]
    settings: dict[str, Any] = {"ignore_end": True, "temperature": 0}
    file, told = tmp_path / "text", list[str]()
    with first.batch() as batch:
        text = batch.add(case["prompt"], max_tokens=20, on_piece=told.append, **settings)
        for _ in range(5):
            assert batch.step() == []
        batch.save(text, file)
        begun = "".join(told)
        fork = batch.fork(text, max_tokens=15, **settings)
        counts = first.page_counts
        assert counts is not None and counts.shared > 0
        made = dict(batch)
        with pytest.raises(onepool.ArgumentError, match=str(text)):
            batch.fork(text)
        with pytest.raises(onepool.ArgumentError, match=str(text)):
            batch.save(text, file)
    assert made[text].tokens == case["tokens"][:20]
    assert begun and begun + made[fork].text == made[text].text
    first.clear_pages()
    with second.batch() as batch:
        tokens = batch.restore(file)
        counts = first.page_counts
        assert tokens > 0 and counts is not None and counts.cached == tokens // 4
        text = batch.add(case["prompt"], max_tokens=20, **settings)
        made = dict(batch)
        assert made[text].tokens == case["tokens"][:20] and batch.counts.reused_tokens > 0
        with pytest.raises(onepool.ModelError, match="nowhere"):
            batch.restore(tmp_path / "nowhere")


def test_pages_lie_in_a_tensor(device: str) -> None:
    first = Generator(LLM / "paged", device=device, pages=48, page_tokens=4)
    counts = first.page_counts
    assert counts is not None and counts.memory_bytes > 0
    memory = onepool.Tensor((counts.memory_bytes,), "uint8")
    memory.numpy()[:] = 1
    own = Generator(LLM / "paged", device=device, pages=48, page_tokens=4, page_memory=memory)
    assert not memory.numpy().any()
    case = EXPECTED["fixed"][1]
    assert own.generate(case["prompt"], max_tokens=20, ignore_end=True, temperature=0).tokens == case["tokens"][:20]
    assert memory.numpy().any()
    small = onepool.Tensor((counts.memory_bytes - 1,), "uint8")
    with pytest.raises(onepool.ArgumentError, match=str(counts.memory_bytes)):
        Generator(LLM / "paged", device=device, pages=48, page_tokens=4, page_memory=small)


def test_a_graph_with_a_fixed_cache_has_pages_where_they_are_asked_for(device: str) -> None:
    changed = Generator(LLM / "fixed", device=device, pages=48, page_tokens=4)
    case = EXPECTED["fixed"][1]
    settings = {"max_tokens": 20, "ignore_end": True, "temperature": 0}
    with changed.batch(texts=2) as batch:
        for _ in range(2):
            batch.add(case["prompt"], **settings)
        assert [made.tokens for _, made in batch] == [case["tokens"][:20]] * 2
    counts = changed.page_counts
    assert counts is not None and counts.page_tokens == 4 and counts.cached > 0


@pytest.mark.parametrize("cache_type", ["f16", "q8"])
def test_caches_hold_less_where_they_are_asked_to(device: str, cache_type: Literal["f16", "q8"]) -> None:
    plain = Generator(LLM / "fixed", device=device)
    less = Generator(LLM / "fixed", device=device, cache_type=cache_type)
    assert plain.cache_bytes is not None and less.cache_bytes is not None
    assert less.cache_bytes <= plain.cache_bytes / 2
    case = EXPECTED["fixed"][1]
    made = less.generate(case["prompt"], max_tokens=8, ignore_end=True, temperature=0)
    assert made.tokens == case["tokens"][:8]
    with pytest.raises(onepool.ArgumentError, match="expected one of"):
        Generator(LLM / "fixed", device=device, cache_type="q5")  # type: ignore[arg-type]


def test_pages_that_cannot_be(generator: Generator) -> None:
    paged = LLM / "paged"
    assert generator.page_counts is None
    with pytest.raises(onepool.ArgumentError, match="not in pages"):
        generator.clear_pages()
    with generator.batch() as batch, pytest.raises(onepool.ArgumentError, match="pages"):
        batch.restore(paged)
    with pytest.raises(onepool.ArgumentError, match="page_tokens"):
        Generator(paged, device="cpu", page_tokens=4)
    memory = onepool.Tensor((64,))
    with pytest.raises(onepool.ArgumentError, match="page_memory"):
        Generator(paged, device="cpu", page_memory=memory)
    with pytest.raises(onepool.ArgumentError, match="pages_of"):
        Generator(paged, device="cpu", page_memory=memory, pages_of=generator)
    with pytest.raises(onepool.ArgumentError, match="0 pages"):
        Generator(paged, device="cpu", pages=0)
    with pytest.raises(onepool.UnsupportedError, match="not in pages"):
        Generator(LLM / "appending", device="cpu", pages=4)
    with pytest.raises(onepool.ArgumentError, match="pages_of"):
        Generator(paged, device="cpu", pages_of=generator)
    with pytest.raises(onepool.ArgumentError, match="pages_of"):
        Generator(paged, device="cpu", pages=4, pages_of=generator)


def test_bad_input(generator: Generator, tmp_path: Path) -> None:
    with pytest.raises(onepool.ArgumentError, match='sample_on: "gpu", expected "auto"'):
        Generator(LLM / "fixed", device="cpu", sample_on="gpu")  # type: ignore[arg-type]
    with pytest.raises(onepool.ModelError, match="none of"):
        Generator(LLM / "fixed", device="cpu", draft=tmp_path)
    with pytest.raises(onepool.ArgumentError, match="draft_tokens is 0"):
        Generator(LLM / "fixed", device="cpu", draft=LLM / "fixed", draft_tokens=0)
    with pytest.raises(onepool.ArgumentError, match="draft_tokens is 3: without a draft"):
        Generator(LLM / "fixed", device="cpu", draft_tokens=3)
    with pytest.raises(onepool.UnsupportedError, match="encoder"):
        Generator(LLM / "fixed", device="cpu", draft=MODELS / "tiny_seq2seq" / "text")
    for settings, error, part in (
        ({"regex": "a", "grammar": "start: x"}, onepool.ArgumentError, "at most one"),
        ({"regex": "("}, onepool.ArgumentError, "the grammar: "),
        ({"json_schema": "{"}, onepool.ArgumentError, "no JSON"),
        ({"json_schema": {"type": "colour"}}, onepool.ArgumentError, "colour"),
        ({"json_schema": {"enum": [{1, 2}]}}, onepool.ArrayTypeError, "json_schema"),
        ({"grammar": "x"}, onepool.ArgumentError, "the grammar: "),
        ({"temperature": -1.0}, onepool.ArgumentError, "temperature"),
        ({"temperatur": 1.0}, onepool.ArrayTypeError, "unknown settings: temperatur"),
        ({"lookup": -1}, onepool.ArgumentError, "lookup: "),
        ({"seed": "x"}, onepool.ArrayTypeError, "seed: "),
        ({"stop": [3]}, onepool.ArrayTypeError, "stop: "),
        ({"regex": b"a"}, onepool.ArrayTypeError, "regex: "),
    ):
        with pytest.raises(error, match=part):
            generator.generate("Hello", **settings)  # type: ignore[arg-type]
        with generator.batch() as batch:
            with pytest.raises(error, match=part):
                batch.add("Hello", **settings)  # type: ignore[arg-type]
            assert batch.idle
    with pytest.raises(onepool.ArgumentError, match="texts is 0"):
        generator.batch(texts=0)
    with pytest.raises(onepool.ArgumentError, match="step tokens is 0"):
        generator.batch(step_tokens=0)
    with pytest.raises(onepool.UnsupportedError, match="come and go"):
        Generator(MODELS / "tiny_seq2seq" / "text", device="cpu").batch()
    batch = generator.batch()
    batch.close()

    def idle(batch: Batch) -> bool:
        return batch.idle

    def forked(batch: Batch) -> int:
        return batch.fork(0)

    for use in (Batch.step, lambda batch: batch.add("Hello"), lambda batch: batch.cancel(0), idle, list, lambda b: b.counts, forked):
        with pytest.raises(onepool.ClosedError, match="the batch is closed"):
            use(batch)
    assert generator.generate("Hello", max_tokens=2, ignore_end=True).tokens == EXPECTED["fixed"][0]["tokens"][:2]


def test_ctrl_c_is_raised_after_the_step_and_loses_no_text() -> None:
    program = """
import os, signal, sys, threading
from onepool.generate import Generator

generator = Generator(sys.argv[1], device="cpu")
whole = generator.generate("Hello", ignore_end=True, max_tokens=40).tokens
timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
with generator.batch(texts=2) as batch:
    made, numbers = {}, []
    timer.start()
    try:
        while True:
            numbers.append(batch.add("Hello", ignore_end=True, max_tokens=40))
            made.update(batch)
    except KeyboardInterrupt:
        print("interrupted")
    made.update(batch)
    if len(numbers) in (len(made), len(made) - 1) and all(text.tokens == whole for text in made.values()):
        print("whole")
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        generator.generate_all(["Hello"] * 3, ignore_end=True)
except KeyboardInterrupt:
    print("interrupted")
assert generator.generate("Hello", max_tokens=2, ignore_end=True).finish == "length"
"""
    command = [sys.executable, "-c", program, str(LLM / "growing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted", "whole", "interrupted"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers that signal")
def test_signals_at_any_moment_lose_no_text_of_a_batch() -> None:
    program = """
import random, signal, sys
from onepool.generate import Generator

class Stop(Exception):
    pass

def handler(number, frame):
    global armed
    if armed:
        armed = False
        raise Stop

def collect():
    global armed, given
    while len(given) < TEXTS:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3))
        if random.random() < 0.5:
            given += batch.step()
        else:
            for ended in batch:
                given += [ended]

TEXTS = 150
generator = Generator(sys.argv[1], device="cpu")
whole = generator.generate("Hello", ignore_end=True, max_tokens=4)
armed, stops, given, pieces = False, 0, [], []
signal.signal(signal.SIGALRM, handler)
random.seed(7)
with generator.batch(texts=4) as batch:
    for _ in range(TEXTS):
        batch.add("Hello", ignore_end=True, max_tokens=4, on_piece=pieces.append)
    while True:
        try:
            collect()
            armed = False
            break
        except Stop:
            stops += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert batch.idle
assert sorted(number for number, _ in given) == list(range(TEXTS)), sorted(number for number, _ in given)
assert all(text.tokens == whole.tokens and text.finish == "length" for _, text in given)
assert type(given[0][1]) is type(whole)
print(stops > 0, len("".join(pieces)) == TEXTS * len(whole.text))
"""
    command = [sys.executable, "-c", program, str(LLM / "growing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]
