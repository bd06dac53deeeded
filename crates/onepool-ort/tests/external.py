"""A program on onnxruntime's C interface that imports an allocation and runs on tensors in it.

    python external.py MODEL [DEVICE]

Python's interface does not have external resources, so the library is called by ctypes. The model is y = relu(a + b) of
open size. What it prints ends with "imported".
"""

import ctypes
import mmap
import pathlib
import sys
from ctypes import addressof, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np
import onnxruntime

import provider

# Positions in OrtApi and OrtInteropApi.
CREATE_ENV, CREATE_SESSION, RUN, CREATE_OPTIONS, LOG_LEVEL = 3, 8, 9, 10, 22
RELEASE_ENV, RELEASE_STATUS, RELEASE_SESSION, RELEASE_VALUE, RELEASE_OPTIONS = 92, 93, 95, 96, 100
ADD_ENTRY, REGISTER, UNREGISTER, DEVICES, APPEND, NAME, INTEROP = 130, 301, 302, 303, 304, 312, 395
CREATE_IMPORTER, RELEASE_IMPORTER, CAN_IMPORT, IMPORT, RELEASE_MEMORY, TENSOR, CAN_SEMAPHORE, SEMAPHORE = range(8)

HOST_ALLOCATION, FLOAT, NOT_IMPLEMENTED, INVALID_ARGUMENT = 4, 1, 9, 2


class Memory(ctypes.Structure):
    """`OrtExternalMemoryDescriptor`."""

    _fields_ = [
        ("version", c_uint32),
        ("handle_type", c_uint32),
        ("native_handle", c_void_p),
        ("size_bytes", c_size_t),
        ("offset_bytes", c_size_t),
    ]


class Tensor(ctypes.Structure):
    """`OrtExternalTensorDescriptor`."""

    _fields_ = [
        ("version", c_uint32),
        ("element_type", c_uint32),
        ("shape", c_void_p),
        ("rank", c_size_t),
        ("offset_bytes", c_size_t),
    ]


class Failed(Exception):
    """What a status says: its code and its text."""


class Table:
    """A table of functions. Those of `call` return a status."""

    def __init__(self, address, api=None):
        self.table, self.api = ctypes.cast(c_void_p(address), ctypes.POINTER(c_void_p)), api or self

    def function(self, slot, result, *arguments):
        return ctypes.CFUNCTYPE(result, *(type(argument) for argument in arguments))(self.table[slot])(*arguments)

    def call(self, slot, *arguments):
        status = self.function(slot, c_void_p, *arguments)
        if status:
            code = self.api.function(1, c_int, c_void_p(status))
            text = self.api.function(2, c_char_p, c_void_p(status)).decode()
            self.api.function(RELEASE_STATUS, None, c_void_p(status))
            raise Failed(code, text)

    def make(self, slot, *arguments):
        """What a function gives by its last argument."""
        made = c_void_p()
        self.call(slot, *arguments, c_void_p(addressof(made)))
        assert made.value, slot
        return made


def refused(code, says, work):
    try:
        work()
    except Failed as failed:
        assert failed.args[0] == code and says in failed.args[1], failed.args
        return
    raise AssertionError(f"nothing was refused, expected {says!r}")


def library():
    found = sorted((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    return found[0] if found else None


def main():
    version = int(onnxruntime.__version__.split(".")[1])
    opened = ctypes.CDLL(str(library()))
    opened.OrtGetApiBase.restype = ctypes.POINTER(c_void_p)
    get_api = ctypes.CFUNCTYPE(c_void_p, c_uint32)(opened.OrtGetApiBase()[0])
    api = Table(get_api(version))
    env = api.make(CREATE_ENV, c_int(3), c_char_p(b"external"))
    api.call(REGISTER, env, c_char_p(b"onepool"), c_char_p(str(provider.LIBRARY).encode()))
    devices, count = c_void_p(), c_size_t()
    api.call(DEVICES, env, c_void_p(addressof(devices)), c_void_p(addressof(count)))
    devices = ctypes.cast(devices, ctypes.POINTER(c_void_p))
    name = provider.NAME.encode()
    (device,) = [
        devices[i] for i in range(count.value) if api.function(NAME, c_char_p, c_void_p(devices[i])) == name
    ]

    asked = sys.argv[2] if len(sys.argv) > 2 else "sim"
    options = api.make(CREATE_OPTIONS)
    api.call(LOG_LEVEL, options, c_int(3))
    for key, value in (("ep.onepool.device", asked), ("ep.onepool.strict", "1"), ("session.disable_cpu_ep_fallback", "1")):
        api.call(ADD_ENTRY, options, c_char_p(key.encode()), c_char_p(value.encode()))
    used = (c_void_p * 1)(device)
    none = c_void_p()
    api.call(APPEND, options, env, c_void_p(addressof(used)), c_size_t(1), none, none, c_size_t(0))
    model = pathlib.Path(sys.argv[1]).read_bytes()
    session = api.make(CREATE_SESSION, env, c_char_p(model), c_size_t(len(model)), options)

    interop = Table(api.function(INTEROP, c_void_p), api)
    importer = interop.make(CREATE_IMPORTER, c_void_p(device))
    able = ctypes.c_bool()
    for kind in range(5):
        interop.call(CAN_IMPORT, importer, c_int(kind), c_void_p(addressof(able)))
        assert able.value == (kind == HOST_ALLOCATION), kind
        interop.call(CAN_SEMAPHORE, importer, c_int(kind), c_void_p(addressof(able)))
        assert not able.value

    # Three tensors of half a megabyte, and a page between them.
    n, page = 2048, mmap.PAGESIZE
    each = n * 64 * 4
    pages = mmap.mmap(-1, 3 * (each + page), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = addressof(ctypes.c_char.from_buffer(pages))
    memory = Memory(30, HOST_ALLOCATION, start, len(pages), page)
    other = Memory(30, 3, start, len(pages), 0)
    refused(NOT_IMPLEMENTED, "memory of type 3", lambda: interop.make(IMPORT, importer, c_void_p(addressof(other))))
    other = Memory(30, HOST_ALLOCATION, start + 8, len(pages) - 8, 0)
    refused(INVALID_ARGUMENT, "address of a page", lambda: interop.make(IMPORT, importer, c_void_p(addressof(other))))
    refused(NOT_IMPLEMENTED, "semaphores", lambda: interop.make(SEMAPHORE, importer, c_void_p(addressof(other))))
    handle = interop.make(IMPORT, importer, c_void_p(addressof(memory)))

    def tensor(offset, rows=n):
        shape = (c_int64 * 2)(rows, 64)
        of = Tensor(30, FLOAT, addressof(shape), 2, offset)
        return interop.make(TENSOR, importer, handle, c_void_p(addressof(of)))

    refused(INVALID_ARGUMENT, "do not fit", lambda: tensor(3 * each))
    offsets = [i * (each + page) for i in range(3)]
    values = [tensor(offset) for offset in offsets[:2]] + [tensor(offsets[2], n)]
    arrays = [np.frombuffer(pages, np.float32, n * 64, page + offset).reshape(n, 64) for offset in offsets]
    names = [(c_char_p * len(all))(*all) for all in ([b"a", b"b"], [b"y"])]
    inputs, outputs = (c_void_p * 2)(*(v.value for v in values[:2])), (c_void_p * 1)(values[2].value)
    at = lambda all: c_void_p(addressof(all))
    before = provider.stats()
    for k in range(5):
        arrays[0][:], arrays[1][:] = k, -2
        api.call(RUN, session, none, at(names[0]), at(inputs), c_size_t(2), at(names[1]), c_size_t(1), at(outputs))
        assert (arrays[2] == max(k - 2, 0)).all()
    moved = provider.stats() - before
    assert (moved.runs, moved.bytes_copied, moved.bytes_in_place) == (5, 0, 5 * 3 * each)
    assert (moved.bindings, moved.bytes_held) == (1, len(pages)), (moved.bindings, moved.bytes_held)

    for value in values:
        api.function(RELEASE_VALUE, None, value)
    interop.function(RELEASE_IMPORTER, None, importer)
    interop.function(RELEASE_MEMORY, None, handle)
    assert provider.stats().bytes_held == before.bytes_held
    # No device has the pages any more: they may go.
    arrays.clear()
    api.function(RELEASE_SESSION, None, session)
    api.function(RELEASE_OPTIONS, None, options)
    api.call(UNREGISTER, env, c_char_p(b"onepool"))
    api.function(RELEASE_ENV, None, env)
    print("imported")


if __name__ == "__main__":
    main()
