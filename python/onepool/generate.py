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

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from onepool import _onepool
from onepool._errors import ArrayTypeError, CancelledError

__all__ = ["Embedded", "Embedder", "Features", "Generated", "Generator", "Prompt", "Stream"]


@dataclass(frozen=True, eq=False)
class Features:
    """What an encoder reads that takes no text, as the log-mel spectrogram of a sound."""

    array: Any
    """As the encoder declares it, for one text: [1, bands, frames] of float32 for Whisper."""
    tokens: Sequence[int] = ()
    """What the decoder goes on from; without any it is the token that the settings name."""


Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]] | Features
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


def _prompt(prompt: Prompt) -> str | list[int] | list[tuple[str, str]] | tuple[Any, list[int]]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Features):
        return prompt.array, list(prompt.tokens)
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise ArrayTypeError(f"prompt: expected a text, tokens or messages, got {type(prompt).__name__}")
    messages: list[tuple[str, str]] = []
    tokens: list[int] = []
    for part in prompt:
        if isinstance(part, Mapping):
            try:
                messages.append((part["role"], part["content"]))
            except KeyError as missing:
                raise ArrayTypeError(f"prompt: the message {dict(part)!r} has no {missing}") from None
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


class Generator:
    """A language model made ready on devices, with the cache of one sequence.

    `device` is as for `onepool.Session`. `context` is how many tokens a prompt and its text may have together; without it
    as many as the model's settings say, at most 4096. `threads` is for the CPU, 0 for all of them. `cache_dir` keeps
    compiled kernels.

    It makes one text at a time: another one meanwhile is a `BusyError`. Raises `ModelError`, `UnsupportedError`,
    `ArgumentError` and `NoDeviceError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | Sequence[str] = "auto",
        context: int | None = None,
        threads: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        names = [device] if isinstance(device, str) else list(device)
        self._native = _onepool.Generator(model, names, context, threads, cache_dir)

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
    def remarks(self) -> list[str]:
        """What the model's settings ask for that is not done, and what makes it slow."""
        return self._native.remarks

    def tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt."""
        return self._native.tokens(_prompt(prompt))

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
    ) -> Stream:
        """Begins a text, and gives its pieces as they come.

        Messages go through the model's chat template. Settings that are not given are the model's. `temperature` 0 takes
        the most likely token always; where the model's settings do so, `top_k`, `top_p` or `min_p` make it 1. Equal
        prompts, settings and seeds give equal texts on a device. Strings of `stop` end the text and are no part of it.
        With `ignore_end` it goes on after a token that ends texts.
        """
        strings = [stop] if isinstance(stop, str) else list(stop)
        chosen = (temperature, top_k, top_p, min_p, repetition_penalty, seed)
        return Stream(self._native.start(_prompt(prompt), max_tokens, chosen, strings, ignore_end))

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
    ) -> Generated:
        """Makes a text, as `stream` does, and returns it at its end."""
        text = self.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            ignore_end=ignore_end,
        )
        return text.result()

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
    `device`, `threads` and `cache_dir` are as for `Generator`, and so are the errors.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        device: str | Sequence[str] = "auto",
        threads: int = 0,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        names = [device] if isinstance(device, str) else list(device)
        self._native = _onepool.Embedder(model, names, threads, cache_dir)

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
        vectors, tokens, cut = self._native.embed(given, prompt, dims)
        return Embedded(np.asarray(vectors), tokens, cut)

    def __repr__(self) -> str:
        return f"<onepool.generate.Embedder: {self.max_tokens} tokens on {', '.join(self.devices)}>"
