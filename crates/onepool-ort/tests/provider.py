"""What the tests have in common: the library, loaded into this process, and sessions on it."""

import ctypes
import os
import pathlib

import onnxruntime as ort

NAME = "OnepoolExecutionProvider"
LIBRARY = pathlib.Path(
    os.environ.get("ONEPOOL_ORT_LIBRARY")
    or pathlib.Path(__file__).parents[3] / "target/debug/libonepool_ort.so"
).resolve()


class Stats(ctypes.Structure):
    """`OnepoolOrtStats` of the library."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("runs", "bytes_in_place", "bytes_copied", "bindings", "parts", "nodes", "bytes_held")
    ]

    def __sub__(self, before):
        return Stats(*(getattr(self, name) - getattr(before, name) for name, _ in self._fields_))


def stats() -> Stats:
    """The counters of the process."""
    found = Stats()
    library = ctypes.CDLL(str(LIBRARY))
    library.onepool_ort_stats.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.onepool_ort_stats.restype = ctypes.c_size_t
    assert library.onepool_ort_stats(ctypes.byref(found), ctypes.sizeof(found)) == ctypes.sizeof(found)
    return found


def register() -> list:
    """Loads the library into onnxruntime, once; the provider's devices."""
    if not any(device.ep_name == NAME for device in ort.get_ep_devices()):
        ort.register_execution_provider_library("onepool", str(LIBRARY))
    return [device for device in ort.get_ep_devices() if device.ep_name == NAME]


def session(model, options=None, *, fallback=False, entries=None, **settings) -> ort.InferenceSession:
    """A session on the provider; without `fallback` a node that it leaves is an error."""
    made = ort.SessionOptions()
    made.log_severity_level = 3
    for key, value in settings.items():
        setattr(made, key, value)
    for key, value in (entries or {}).items():
        made.add_session_config_entry(key, value)
    if not fallback:
        made.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    made.add_provider_for_devices(register(), {"device": "cpu", **(options or {})})
    model = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    # Without its own second attempt, on the CPU provider, which would hide the error.
    return ort.InferenceSession(model, sess_options=made, enable_fallback=0)
