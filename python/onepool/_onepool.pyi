"""The native part. Its classes are documented where they are public: see `onepool`."""

import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypedDict, final

import numpy as np

from onepool.generate import Generated

__version__: str

MetadataRow: TypeAlias = tuple[
    tuple[str, int, str, str, str, str, int, str, str],
    dict[str, int],
    dict[str, str],
]

class Options(TypedDict):
    device: list[str]
    precision: str
    activations: str
    integers: str
    coarse_filter: bool
    fuse: bool
    placement: str
    placement_seconds: float | None
    place_nodes: dict[str, int]
    place_operators: dict[str, int]
    place_rest: int | None
    tuning: str | float
    tuning_dir: str | os.PathLike[str] | None
    submission_limit: str | float | None
    strict: bool
    fallback: bool
    threads: int
    cache_dir: str | os.PathLike[str] | None
    copy_threshold: int | None
    wait: str
    priority: str
    robustness: str
    validation: bool
    params: str | os.PathLike[str] | None
    any_device: bool
    map_weights: bool

def devices() -> str: ...
def tell_log() -> None: ...
def pack(items: list[np.ndarray[Any, Any]], dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]: ...
def unpack(values: np.ndarray[Any, Any], table: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]: ...

@final
class Pages:
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Tensor:
    """A C-contiguous tensor of zeros in pages that every device can import.

    NumPy, the buffer protocol and DLPack see the same bytes: `numpy()`, `numpy.asarray(tensor)`,
    `torch.from_dlpack(tensor)`. Raises `DTypeError`, `ShapeError` and `OutOfMemoryError`.
    """

    def __new__(cls, shape: tuple[int, ...] | list[int], dtype: str = "float32") -> Tensor: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def dtype(self) -> str:
        """The name of its element type."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy array over the same bytes. Raises `DTypeError` for element types that need ml_dtypes where that is not installed."""

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Cancel:
    """Ends the runs that were given it. One cancels for good: make a new one for later runs."""

    def __new__(cls) -> Cancel: ...
    def cancel(self) -> None:
        """Ends the runs before their next submission to a device. Any thread may call it."""

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""

@final
class Verdicts:
    def rows(self) -> list[tuple[str, str, str, int, int, int, int, str, str | None]]: ...

@final
class Binding:
    def run(self, time_limit: float | None = None, cancel: Cancel | None = None) -> dict[str, Any]: ...
    def rebind_input(self, name: str, array: Any) -> None: ...
    def rebind_output(self, name: str, array: Any) -> None: ...
    def outputs(self) -> dict[str, Any]: ...
    def verdicts(self) -> Verdicts: ...
    def plan(self) -> str: ...
    def profile(self) -> str: ...
    def close(self) -> None: ...

@final
class Session:
    def __new__(
        cls,
        path: str | os.PathLike[str] | None,
        model: bytes | None,
        base_dir: str | os.PathLike[str] | None,
        options: Options,
        input_frames: dict[str, Any] | None,
        output_frames: dict[str, Any] | None,
    ) -> Session: ...
    def inputs(self) -> list[tuple[str, str | None, tuple[int | str | None, ...] | None]]: ...
    def outputs(self) -> list[tuple[str, str | None, tuple[int | str | None, ...] | None]]: ...
    def metadata(self) -> MetadataRow: ...
    def devices(self) -> list[str]: ...
    def bind(
        self,
        inputs: dict[str, Any],
        out: dict[str, Any] | None,
        updates: dict[str, Any] | None,
        strict: bool | None,
    ) -> Binding: ...
    def run(
        self,
        inputs: dict[str, Any],
        out: dict[str, Any] | None,
        time_limit: float | None,
        cancel: Cancel | None,
    ) -> tuple[dict[str, Any], Verdicts]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...

class Settings(TypedDict):
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    seed: int
    stop: list[str]
    ignore_end: bool
    json_schema: str | None
    regex: str | None
    grammar: str | None
    lookup: int
    reuse: bool

_Prompt: TypeAlias = str | list[int] | list[str] | tuple[Any, list[int]]
_Row: TypeAlias = tuple[
    str,
    list[int],
    int,
    Literal["end", "stop", "length", "context", "grammar", "cancelled"],
    float,
    float,
    float,
    float,
    float,
    int,
    int,
    int,
]

@final
class Stream:
    def next(self) -> str | None: ...
    def made(self) -> _Row | None: ...
    def close(self) -> None: ...

@final
class Batch:
    def add(self, prompt: _Prompt, on_piece: Callable[[str], object] | None, settings: Settings) -> int: ...
    def step(
        self,
        pieces: list[tuple[Callable[[str], object], str]],
        ended: list[tuple[int, Generated]],
        kind: type[Generated],
    ) -> None: ...
    def fork(self, text: int, on_piece: Callable[[str], object] | None, settings: Settings) -> int: ...
    def save(self, text: int, path: str | os.PathLike[str]) -> None: ...
    def restore(self, path: str | os.PathLike[str]) -> int: ...
    def cancel(self, text: int) -> None: ...
    def idle(self) -> bool: ...
    def counts(self) -> tuple[int, int, int, int, int]: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class Embedder:
    def __new__(
        cls,
        path: str | os.PathLike[str],
        options: Options,
    ) -> Embedder: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def prompts(self) -> list[str]: ...
    @property
    def devices(self) -> list[str]: ...
    def embed(
        self, texts: list[str], prompt: str | None, dims: int | None
    ) -> tuple[Tensor, list[int], list[int]]: ...

class Generator:
    def __new__(
        cls,
        path: str | os.PathLike[str],
        variant: str | None,
        template_args: dict[str, str],
        context: int | None,
        draft: tuple[str | os.PathLike[str], int] | None,
        sample_on: str,
        pages: tuple[int | None, int | None, Tensor | None, Generator | None],
        cache_type: str | None,
        options: Options,
    ) -> Generator: ...
    @property
    def context(self) -> int: ...
    @property
    def cache_bytes(self) -> int | None: ...
    def metadata(self) -> MetadataRow: ...
    @property
    def remarks(self) -> list[str]: ...
    @property
    def devices(self) -> list[str]: ...
    def page_counts(self) -> tuple[int, int, int, int, int, int, int, int, int] | None: ...
    def clear_pages(self) -> None: ...
    def tokens(self, prompt: _Prompt) -> list[int]: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def restore(self, path: str | os.PathLike[str]) -> int: ...
    def start(self, prompt: _Prompt, settings: Settings) -> Stream: ...
    def batch(self, texts: int, step_tokens: int) -> Batch: ...
