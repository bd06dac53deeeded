"""How sessions are opened."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, cast

from onepool import _onepool
from onepool._errors import ArgumentError, ArrayTypeError


class Options(TypedDict, total=False):
    """How a model is made ready on devices: keyword arguments of `Session`, `Generator` and `Embedder`."""

    device: str | Sequence[str] | None
    """A name of `devices()`, "auto", or several: the first one runs what nothing else places. Without it the environment
    variable ONEPOOL_DEVICE names the device, else it is "auto"."""
    precision: Literal["f32", "f16"]
    """What a float32 model computes in; "f16" sums in float32."""
    activations: Literal["allowed", "exact"]
    """Whether products with packed weights may round their activations where the model allows it, which is faster."""
    integers: Literal["auto", "always", "never"]
    """Where operators between DequantizeLinear and QuantizeLinear compute with bytes, and not in float32. "auto" means on CPUs
    where that is faster."""
    coarse_filter: bool
    """Whether a Resize of an image may be off by 1/256 of the difference of neighbours, which hardware then does."""
    fuse: bool
    """Whether operators are fused where they can be."""
    placement: Literal["manual", "auto"]
    """"auto" measures which device is best for each operator."""
    placement_seconds: float | None
    """The most time that this measures, by default 2."""
    place_nodes: Mapping[str, int]
    """Devices of nodes by their names, as positions in the session's `devices`. They are stronger than "auto"."""
    place_operators: Mapping[str, int]
    """Devices of all nodes of an operator, as in `{"Conv": 0}`."""
    place_rest: int | None
    """The device of all nodes that nothing else places."""
    tuning: Literal["off", "kept"] | float
    """Which kernels run: those of the built-in rules, those that were faster when they were measured, or the same after so
    many seconds of measuring what is not known."""
    tuning_dir: str | os.PathLike[str] | None
    """The folder of what was measured, by default `cache_dir`. Without either nothing is kept."""
    submission_limit: Literal["auto", "off"] | float | None
    """The most seconds that one submission may keep a device busy, so that a display goes on. "auto" means 0.1 on devices that
    may drive one. Without it the environment variable ONEPOOL_SUBMISSION_LIMIT decides, else "auto"."""
    strict: bool
    """Whether every copy of an array by the CPU is an error."""
    fallback: bool
    """Whether an operator that a device has no kernel for runs on the CPU; otherwise it is an error."""
    threads: int
    """Threads of the CPU, 0 for all of them."""
    cache_dir: str | os.PathLike[str] | None
    """Keeps compiled kernels and what was measured."""
    copy_threshold: int | None
    """Arrays of fewer bytes are copied; unless given, that is measured."""
    wait: Literal["adaptive", "block", "spin"]
    """How a thread waits for a device: it polls for a while and then sleeps, sleeps at once, or polls until the end."""
    priority: Literal["auto", "normal"]
    """Whose work on the device comes first: "auto" lets a display come first, where the driver permits it."""
    robustness: Literal["callers", "all", "off"]
    """Which kernels a Vulkan device keeps inside what is bound to them: an application's own, all, or none."""
    validation: bool
    """Whether Vulkan's validation layers are on. Their messages are warnings of the logger `onepool.vulkan`."""
    params: str | os.PathLike[str] | None
    """The parameters of a TVM graph, where they are not beside it."""
    any_device: bool
    """Whether nodes of a TVM graph whose device is not in the list run on the first one; otherwise that is an error."""
    map_weights: bool
    """Whether large parameters are read where they lie in the system's cache of files, so that processes share them. Who sets
    it promises that no one changes or shortens the model's files while the session lives."""


def names(device: str | Sequence[str] | None) -> list[str]:
    """The devices that an argument names; none for the one that ONEPOOL_DEVICE names, else "auto"."""
    if device is None:
        return []
    given: Any = device
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for name in listed:
        if not isinstance(name, str):
            raise ArrayTypeError(f"device: expected a name or several, got {name!r}")
    return listed


def count(value: Any, argument: str) -> int:
    """A number from 0."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArrayTypeError(f"{argument}: expected a whole number, got {type(value).__name__}") from None
    if not 0 <= number < 1 << 63:
        raise ArgumentError(f"{argument} is {number}: expected a number from 0")
    return number


def places(given: Any, argument: str) -> dict[str, int]:
    """Entries of the device table by names."""
    if not isinstance(given, Mapping):
        raise ArrayTypeError(f"{argument}: expected devices by name, as in {{'conv1': 0}}, got {type(given).__name__}")
    return {name: entry(device, f"{argument}[{name!r}]") for name, device in given.items()}


def entry(device: Any, argument: str) -> int:
    """An entry of the device table."""
    position = count(device, argument)
    if position >= 1 << 32:
        raise ArgumentError(f"{argument} is {position}: expected a position in the session's devices")
    return position


def options(given: Options) -> _onepool.Options:
    """All options, as the native part takes them."""
    unknown = given.keys() - Options.__annotations__.keys()
    if unknown:
        raise ArrayTypeError(f"unknown options: {', '.join(sorted(unknown))}")
    threshold, rest = given.get("copy_threshold"), given.get("place_rest")
    all_options = {
        "precision": "f32",
        "activations": "allowed",
        "integers": "auto",
        "coarse_filter": False,
        "fuse": True,
        "placement": "manual",
        "placement_seconds": None,
        "tuning": "off",
        "tuning_dir": None,
        "submission_limit": None,
        "strict": False,
        "fallback": True,
        "cache_dir": None,
        "wait": "adaptive",
        "priority": "auto",
        "robustness": "callers",
        "validation": False,
        "params": None,
        "any_device": False,
        "map_weights": False,
        **given,
        "device": names(given.get("device")),
        "place_nodes": places(given.get("place_nodes", {}), "place_nodes"),
        "place_operators": places(given.get("place_operators", {}), "place_operators"),
        "place_rest": None if rest is None else entry(rest, "place_rest"),
        "threads": count(given.get("threads", 0), "threads"),
        "copy_threshold": None if threshold is None else count(threshold, "copy_threshold"),
    }
    return cast("_onepool.Options", all_options)
