"""onepool as an ONNX backend (`onnx.backend.base`), for ONNX's own tests and for programs written to that interface.

    import onepool.backend
    outputs = onepool.backend.prepare(model).run([x])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep

from onepool import _onepool
from onepool._errors import NoDeviceError, UnsupportedError
from onepool._session import Io, Session


class OnepoolRep(BackendRep):
    """A prepared model."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs once. `inputs` are arrays in the order of the model's inputs, or by name; so many outputs come back."""
        if not isinstance(inputs, Mapping):
            values = inputs if isinstance(inputs, Sequence) else [inputs]
            inputs = dict(zip(_names(self.session.inputs), values, strict=True))
        arrays: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, (list, tuple)):
                # A session takes a sequence as two tensors.
                dtype = next((io.dtype for io in self.session.inputs if io.name == f"{name}/values"), None)
                items = [np.asarray(item, order="C") for item in value]
                arrays[f"{name}/values"], arrays[f"{name}/table"] = _onepool.pack(items, dtype or "float32")
            else:
                arrays[name] = np.asarray(value)
        results = self.session.run(arrays, **kwargs)

        def result(name: str) -> Any:
            if name in results:
                return results[name]
            return _onepool.unpack(results[f"{name}/values"], results[f"{name}/table"])

        return tuple(result(name) for name in _names(self.session.outputs))


def _names(ios: Sequence[Io]) -> list[str]:
    """The names as the model has them: one of a sequence."""
    known = {io.name for io in ios}
    names = []
    for io in ios:
        name, _, part = io.name.rpartition("/")
        if part == "values" and f"{name}/table" in known:
            names.append(name)
        elif part != "table" or f"{name}/values" not in known:
            names.append(io.name)
    return names


class OnepoolBackend(Backend):
    """Runs models on the device `device` of onepool; ONNX's name for it is "CPU", as that is where arrays are."""

    device: ClassVar[str] = "cpu"

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether arrays may be in this memory: "CPU" alone."""
        return device.partition(":")[0] == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model uses only what onepool has. Other problems of a model are raised."""
        try:
            cls.prepare(model, device, **kwargs)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> OnepoolRep:
        """Makes a model ready. `kwargs` are those of `Session`."""
        if not cls.supports_device(device):
            raise NoDeviceError(f'device: {device!r} has no memory that arrays are in, expected "CPU"')
        return OnepoolRep(Session(model, **{"device": cls.device, **kwargs}))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Runs one operator. `kwargs` may have `opset_version`."""
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = [name for name in node.input if name]
        arrays = {name: np.asarray(array) for name, array in zip(names, inputs, strict=True)}

        def declared(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

        takes = [declared(name, array.dtype, array.shape) for name, array in arrays.items()]
        made = [name for name in node.output if name]
        if outputs_info is None:
            gives = [onnx.ValueInfoProto(name=name) for name in made]
        else:
            gives = [declared(name, *info) for name, info in zip(made, outputs_info, strict=True)]
        domains = [helper.make_opsetid("", opset)]
        if node.domain:
            domains.append(helper.make_opsetid(node.domain, 1))
        graph = helper.make_graph([node], "node", takes, gives)
        rep = cls.prepare(helper.make_model(graph, opset_imports=domains), device, **kwargs)
        return rep.run(arrays)


is_compatible = OnepoolBackend.is_compatible
prepare = OnepoolBackend.prepare
run_model = OnepoolBackend.run_model
run_node = OnepoolBackend.run_node
supports_device = OnepoolBackend.supports_device
