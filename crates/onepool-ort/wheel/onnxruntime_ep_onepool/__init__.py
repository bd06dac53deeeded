"""The onepool execution provider for onnxruntime: where its library is, and the provider's name."""

import pathlib

__all__ = ["ep_name", "library_path"]


def library_path() -> str:
    """The library that `onnxruntime.register_execution_provider_library` takes."""
    return str(pathlib.Path(__file__).with_name("libonepool_ort.so").resolve())


def ep_name() -> str:
    """The provider's name in `onnxruntime.get_ep_devices()`."""
    return "OnepoolExecutionProvider"
