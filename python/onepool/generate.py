"""Text from language models, and vectors of texts.

    from onepool.generate import Generator
    generator = Generator("models/llama")
    for piece in generator.stream("Once upon a time", max_tokens=100):
        print(piece, end="", flush=True)

A model is a GGUF file, or a folder as onnxruntime-genai or the transformers library export it: an ONNX graph, its
settings and `tokenizer.json`.

    from onepool.generate import Embedder
    vectors = Embedder("models/all-MiniLM-L6-v2").embed(["a cat", "a kitten"]).vectors
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypedDict, Unpack

import numpy as np

from onepool import _onepool
from onepool._errors import ArgumentError, ArrayTypeError, CancelledError
from onepool._onepool import Tensor
from onepool._options import Options, count, options
from onepool._session import Metadata, metadata_of

__all__ = [
    "Batch",
    "BatchCounts",
    "Embedded",
    "Embedder",
    "Features",
    "Generated",
    "Generator",
    "PageCounts",
    "Prompt",
    "Settings",
    "Stream",
]


@dataclass(frozen=True, eq=False)
class Features:
    """What an encoder reads that takes no text, as the log-mel spectrogram of a sound."""

    array: Any
    """As the encoder declares it, for one text: [1, bands, frames] of float32 for Whisper."""
    tokens: Sequence[int] = ()
    """What the decoder goes on from; without any it is the token that the settings name."""


Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]] | Features
"""A text, numbers of tokens, messages of a chat (`[{"role": "user", "content": "Hello"}]`), or features of a sound."""


class Generated(NamedTuple):
    """A text that was made."""

    text: str
    tokens: list[int]
    """Its tokens, without the one that ended it."""
    prompt_tokens: int
    """Number of tokens of the prompt."""
    finish: Literal["end", "stop", "length", "context", "grammar", "cancelled"]
    """Why it ended: by a token of the model's, a string of `stop`, `max_tokens`, a full cache, or `close`."""
    prepare_seconds: float
    """What planning took."""
    prompt_seconds: float
    generation_seconds: float
    """What the tokens after the first one took."""
    prompt_tokens_per_second: float
    tokens_per_second: float
    reused_tokens: int
    """Tokens of the prompt that were in the cache."""
    guessed_tokens: int
    """Tokens that were guessed, by `lookup` or by a draft model."""
    accepted_tokens: int
    """Those of them that became part of the text."""


class Settings(TypedDict, total=False):
    """How a text is made: keyword arguments. Those of sampling that are not given are the model's."""

    max_tokens: int | None
    """The most tokens; without it as many as there is room for."""
    temperature: float | None
    """0 takes the most likely token always. Where the model's settings do so, `top_k`, `top_p` or `min_p` make it 1."""
    top_k: int | None
    """One of so many most likely tokens; 0 is of all."""
    top_p: float | None
    """One of those that have this share of the probability together."""
    min_p: float | None
    """One of those that have this share of the most likely one's probability."""
    repetition_penalty: float | None
    """Above 1: tokens that were there are less likely."""
    seed: int
    """Equal prompts, settings and seeds give equal texts on a device."""
    stop: str | Sequence[str]
    """Strings that end the text; they are no part of it."""
    ignore_end: bool
    """Whether the text goes on after a token that ends texts."""
    json_schema: str | Mapping[str, Any] | None
    """The text is a value that this schema describes. At most one of this, `regex` and `grammar` is given."""
    regex: str | None
    """The whole text is what this regular expression matches."""
    grammar: str | None
    """The text is what this grammar in Lark's notation derives from `start`."""
    lookup: int
    """The most tokens that are guessed at once from the text so far. The text is the same, up to rounding."""
    reuse: bool
    """Whether tokens at the begin of the prompt that the cache has from the text before are not computed again."""


def _settings(given: Settings) -> _onepool.Settings:
    unknown = given.keys() - Settings.__annotations__.keys()
    if unknown:
        raise ArrayTypeError(f"unknown settings: {', '.join(sorted(unknown))}")
    stop, schema = given.get("stop", ()), given.get("json_schema")
    if isinstance(schema, Mapping):
        try:
            schema = json.dumps(dict(schema))
        except (TypeError, ValueError) as error:
            raise ArrayTypeError(f"json_schema: {error}") from None
    return {
        "max_tokens": given.get("max_tokens"),
        "temperature": given.get("temperature"),
        "top_k": given.get("top_k"),
        "top_p": given.get("top_p"),
        "min_p": given.get("min_p"),
        "repetition_penalty": given.get("repetition_penalty"),
        "seed": given.get("seed", 0),
        "stop": [stop] if isinstance(stop, str) else list(stop),
        "ignore_end": given.get("ignore_end", False),
        "json_schema": schema,
        "regex": given.get("regex"),
        "grammar": given.get("grammar"),
        "lookup": given.get("lookup", 0),
        "reuse": given.get("reuse", False),
    }


def _template_args(given: Mapping[str, Any] | None) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArrayTypeError(f"template_args: expected values by name, got {type(given).__name__}")
    try:
        return {name: json.dumps(value) for name, value in given.items()}
    except (TypeError, ValueError) as error:
        raise ArrayTypeError(f"template_args: {error}") from None


def _prompt(prompt: Prompt) -> str | list[int] | list[str] | tuple[Any, list[int]]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Features):
        return prompt.array, list(prompt.tokens)
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise ArrayTypeError(f"prompt: expected a text, tokens or messages, got {type(prompt).__name__}")
    messages: list[str] = []
    tokens: list[int] = []
    for part in prompt:
        if isinstance(part, Mapping):
            try:
                messages.append(json.dumps(dict(part)))
            except (TypeError, ValueError) as error:
                raise ArrayTypeError(f"prompt: the message {dict(part)!r}: {error}") from None
        elif isinstance(part, str):
            raise ArrayTypeError("prompt: expected a text, tokens or messages, got a list of texts")
        else:
            tokens.append(part)
    if messages and tokens:
        raise ArrayTypeError("prompt: expected tokens or messages, got both")
    return messages or tokens


class Stream:
    """A text on its way: an iterator of pieces of whole characters.

    A thread makes the text while other threads run. Ctrl-C in the main thread ends it. Errors are raised where pieces are
    taken.
    """

    def __init__(self, native: _onepool.Stream) -> None:
        self._native = native

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        piece = self._native.next()
        if piece is None:
            raise StopIteration
        return piece

    def result(self) -> Generated:
        """The whole text. Takes the pieces that are left. Raises `CancelledError` where nothing was made."""
        for _ in self:
            pass
        row = self._native.made()
        if row is None:
            raise CancelledError("the text was ended before there was a result")
        return Generated(*row)

    def close(self) -> None:
        """Ends the text after the token that is running, and waits for that."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BatchCounts(NamedTuple):
    """What a batch did so far."""

    steps: int
    tokens: int
    """Tokens that ran in them."""
    reused_tokens: int
    """Tokens of prompts that were in pages already."""
    most_texts: int
    """The most texts of one step."""
    preempted: int
    """How often a text was set aside for want of pages, to be computed again."""


class PageCounts(NamedTuple):
    """How the pages of a cache are used."""

    page_tokens: int
    """Tokens of a page."""
    pages: int
    free: int
    """Pages with nothing in them."""
    used: int
    """Pages of texts."""
    shared: int
    """Those of them that several texts have."""
    cached: int
    """Pages kept for prompts that begin alike, until their memory is needed."""
    copied: int
    """Pages that were copied before a write."""
    evicted: int
    """Cached pages that were given up."""
    memory_bytes: int
    """Bytes of their memory: what `page_memory` for as many pages needs."""


class Batch:
    """Texts that are added at any time: `generator.batch()` makes it.

    Each step gives every text that runs its next token, and runs a part of the prompts of those that begin. A text that
    has ended leaves at once, and the next one takes its place. Texts are those that `Generator.generate` makes one by one,
    up to rounding; guesses are not made. Iterating over it steps until no text is left, and gives numbers with texts.

    The generator is in use until the batch is closed. Other threads run during a step, and may add texts. Ctrl-C in the
    main thread is raised when the step that runs is over, and no text is lost. Calls of a closed one are a `ClosedError`.
    """

    def __init__(self, native: _onepool.Batch) -> None:
        self._native = native
        # Ctrl-C is raised after calls and between turns of loops: an element is taken without a call, so that none is lost.
        self._pieces: list[tuple[Callable[[str], object], str]] = []
        self._ended: list[tuple[int, Generated]] = []

    def add(
        self, prompt: Prompt, *, on_piece: Callable[[str], object] | None = None, **settings: Unpack[Settings]
    ) -> int:
        """Adds a text, which waits for its place; gives its number, which counts from 0.

        `step` calls `on_piece` with the text as it comes. What that raises is raised by `step`.
        """
        return self._native.add(_prompt(prompt), on_piece, _settings(settings))

    def fork(
        self, text: int, *, on_piece: Callable[[str], object] | None = None, **settings: Unpack[Settings]
    ) -> int:
        """Adds a text that goes on from where another is now, as with another seed; gives its number.

        With a cache in pages it has the other's pages until one of them writes on. Raises `ArgumentError` where no such
        text runs or waits.
        """
        return self._native.fork(text, on_piece, _settings(settings))

    def save(self, text: int, path: str | os.PathLike[str]) -> None:
        """Writes what the cache has of a text that runs to a file, as `Generator.save` does."""
        self._native.save(text, path)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Reads such a file into pages, where prompts that begin with its tokens find them; gives the number of those.

        Raises `ArgumentError` where the cache is not in pages, and while as many texts run as may.
        """
        return self._native.restore(path)

    def step(self) -> list[tuple[int, Generated]]:
        """Runs one step; gives the texts that have ended, with their numbers.

        After an error texts that ran are computed again by the next step, but for one whose own logits or grammar failed:
        that one is gone.
        """
        self._run()
        ended = self._ended[:]
        del self._ended[:]
        return ended

    def _run(self) -> None:
        self._native.step(self._pieces, self._ended, Generated)
        while self._pieces:
            on_piece, piece = self._pieces[0]
            del self._pieces[0]
            on_piece(piece)

    def cancel(self, text: int) -> None:
        """Ends a text in the next step; its `finish` is "cancelled". Raises `ArgumentError` for one that has ended."""
        self._native.cancel(text)

    @property
    def idle(self) -> bool:
        """Whether no text runs or waits, and none that has ended is still to be given."""
        return not self._ended and not self._pieces and self._native.idle()

    @property
    def counts(self) -> BatchCounts:
        """What was done so far."""
        return BatchCounts(*self._native.counts())

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._native.closed

    def __iter__(self) -> Iterator[tuple[int, Generated]]:
        while not self.idle:
            if not self._ended:
                self._run()
            while self._ended:
                ended = self._ended[0]
                del self._ended[0]
                yield ended

    def close(self) -> None:
        """Drops texts that have not ended. The generator is free then."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Generator:
    """A language model made ready on devices, with the cache of one sequence.

    `onepool.Options` has the keyword arguments of sessions, `device` among them, which are for the draft model too.
    `context` is how many tokens a prompt and its text may have together; without it as many as the model's settings say, at
    most 4096. `variant` takes the graph whose name ends so, as "q4f16" of `onnx/model_q4f16.onnx`. `template_args` are
    variables of the chat template, as `{"enable_thinking": False}`; `tools` are a list of functions as OpenAI and the
    transformers library describe them.

    `draft` is a smaller model with the same tokens, which guesses at most `draft_tokens` at once, by default 4; one run checks them.
    Greedy texts are the same with it, and others have the same distribution. `sample_on` says where tokens are chosen:
    "host" reads all logits, "device" has a GPU find the likely tokens, and "auto" does so where the vocabulary is large.

    The cache of a graph with PagedAttention is in pages, as many as texts may need. `pages` makes it so many and never
    more, each of `page_tokens`, by default 16. A graph with GroupQueryAttention, as that of a GGUF file, is changed to have
    them where they are asked for. `page_memory` is a tensor whose bytes they are in, filled with zeros first: it has at
    least `page_counts.memory_bytes` of a generator with as many pages, and its bytes are the pages' until the last
    generator that has them is gone. `pages_of` is a generator of the same model whose pages this one has too: what one
    has computed of a prompt the other finds.

    `cache_type` is what the caches of a graph with GroupQueryAttention hold, the draft's too: "q8" and "q4" are codes of 8
    and 4 bits with a scale for each 32. Without it they are "f16" where `precision` is "f16" and there are no pages, else
    as the graph declares.

    It makes one text, or one batch, at a time: another one meanwhile is a `BusyError`. Raises `ModelError`,
    `UnsupportedError`, `ArgumentError` and `NoDeviceError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context: int | None = None,
        variant: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        draft: str | os.PathLike[str] | None = None,
        draft_tokens: int | None = None,
        sample_on: Literal["auto", "host", "device"] = "auto",
        pages: int | None = None,
        page_tokens: int | None = None,
        page_memory: Tensor | None = None,
        pages_of: Generator | None = None,
        cache_type: Literal["f32", "f16", "q8", "q4"] | None = None,
        **given: Unpack[Options],
    ) -> None:
        if draft_tokens is not None and (draft is None or draft_tokens < 1):
            expected = "without a draft" if draft is None else "expected at least 1"
            raise ArgumentError(f"draft_tokens is {draft_tokens}: {expected}")
        guesses = None if draft is None else (draft, 4 if draft_tokens is None else draft_tokens)
        other: _onepool.Generator | None = None if pages_of is None else pages_of._native
        own = [None if n is None else count(n, name) for n, name in ((pages, "pages"), (page_tokens, "page_tokens"))]
        room = None if context is None else count(context, "context")
        self._native: _onepool.Generator = _onepool.Generator(
            model,
            variant,
            _template_args(template_args),
            room,
            guesses,
            sample_on,
            (own[0], own[1], page_memory, other),
            cache_type,
            options(given),
        )

    @property
    def context(self) -> int:
        """Tokens that a prompt and its text may have together."""
        return self._native.context

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the cache of keys and values, where it has a fixed length."""
        return self._native.cache_bytes

    @property
    def devices(self) -> list[str]:
        """The names of its devices."""
        return self._native.devices

    @property
    def metadata(self) -> Metadata:
        """What the model's file says of itself."""
        return metadata_of(self._native.metadata())

    @property
    def remarks(self) -> list[str]:
        """What the model's settings ask for that is not done, and what makes it slow."""
        return self._native.remarks

    @property
    def page_counts(self) -> PageCounts | None:
        """How the pages of its cache are used, also while it makes a text; None where it is not in pages."""
        row = self._native.page_counts()
        return None if row is None else PageCounts(*row)

    def clear_pages(self) -> None:
        """Gives up all cached pages. Raises `ArgumentError` where the cache is not in pages."""
        self._native.clear_pages()

    def tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt."""
        return self._native.tokens(_prompt(prompt))

    def stream(self, prompt: Prompt, **settings: Unpack[Settings]) -> Stream:
        """Begins a text, and gives its pieces as they come. `Settings` has the keyword arguments.

        Messages go through the model's chat template.
        """
        return Stream(self._native.start(_prompt(prompt), _settings(settings)))

    def generate(self, prompt: Prompt, **settings: Unpack[Settings]) -> Generated:
        """Makes a text, as `stream` does, and returns it at its end."""
        return self.stream(prompt, **settings).result()

    def batch(self, *, texts: int = 8, step_tokens: int = 256) -> Batch:
        """Begins a batch. At most `texts` run at once, and others wait; the cache is as many times as large.

        A step has at most `step_tokens` tokens: one of each text that goes on, then tokens of prompts. Raises
        `UnsupportedError` for a model with an encoder.
        """
        return Batch(self._native.batch(texts, step_tokens))

    def generate_all(
        self, prompts: Sequence[Prompt], *, texts: int = 8, **settings: Unpack[Settings]
    ) -> list[Generated]:
        """Makes a text of each prompt in a batch of at most `texts` at once; the texts in the order of their prompts."""
        with self.batch(texts=texts) as batch:
            numbers = [batch.add(prompt, **settings) for prompt in prompts]
            made = dict(batch)
        return [made[number] for number in numbers]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the tokens of the last conversation that are in the cache, with their keys and values, to a file."""
        self._native.save(path)

    def restore(self, path: str | os.PathLike[str]) -> int:
        """Fills the cache from a file of `save`; gives the number of its tokens.

        A prompt that begins with them computes only the others where `reuse` is set. Raises `ArgumentError` for a file that
        is damaged or of another model; the cache is empty then.
        """
        return self._native.restore(path)

    def __repr__(self) -> str:
        return f"<onepool.generate.Generator: {self.context} tokens on {', '.join(self.devices)}>"


class Embedded(NamedTuple):
    """Vectors of texts."""

    vectors: np.ndarray[Any, np.dtype[np.float32]]
    """[texts, elements]."""
    tokens: list[int]
    """Tokens of each text, with what marks its begin and end and what was put before it."""
    cut: list[int]
    """Places of the texts whose end was cut, because the model takes fewer tokens."""


class Embedder:
    """A model of sentence-transformers: texts of a like meaning have vectors of a like direction.

    The folder holds `model.onnx` or `onnx/model.onnx`, `tokenizer.json`, and the settings of sentence-transformers.
    The keyword arguments are those of `onepool.Options`, and errors are as for `Generator`.
    """

    def __init__(self, model: str | os.PathLike[str], **given: Unpack[Options]) -> None:
        self._native = _onepool.Embedder(model, options(given))

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text; what is longer is cut."""
        return self._native.max_tokens

    @property
    def prompts(self) -> list[str]:
        """Names of texts that the model's settings can put before texts."""
        return self._native.prompts

    @property
    def devices(self) -> list[str]:
        """The names of its devices."""
        return self._native.devices

    def embed(self, texts: str | Sequence[str], *, prompt: str | None = None, dims: int | None = None) -> Embedded:
        """The vectors of texts, which run in groups of like lengths.

        `prompt` is one of `prompts`, such as "query". `dims` takes so many elements of each vector, of models whose first
        ones are made to do alone.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        for text in given:
            if not isinstance(text, str):
                raise ArrayTypeError(f"texts: expected texts, got {type(text).__name__}")
        vectors, tokens, cut = self._native.embed(given, prompt, dims)
        return Embedded(np.asarray(vectors), tokens, cut)

    def __repr__(self) -> str:
        return f"<onepool.generate.Embedder: {self.max_tokens} tokens on {', '.join(self.devices)}>"
