"""The Dynamo backend ``openvino_onnx``: runs forward passes in OpenVINO, in full precision.

OpenVINO's own backend ``openvino`` (2026.4) computes in bfloat16 on CPUs that support it and
returns memory that its next call overwrites. This one exports each graph to ONNX, like ``onnxrt``.
CPUs only. OpenVINO computes 64-bit integers in 32 bits there; graphs that might need more are
refused. Options: see :mod:`autocompile.runtime.backends.onnx.graph`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from autocompile.runtime.backends.onnx.graph import compile_graph
from autocompile.runtime.backends.onnx.model import Args, Exported, Unsupported
from autocompile.runtime.backends.onnx.session import Session

__all__ = ["openvino_onnx"]

_TAKEN = (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool)

_INT64 = 7  # onnx.TensorProto.INT64
_LIMIT = 2**31 - 1
# Magnitudes by source type of a cast: int8, int16, int32, uint8, uint16, bool.
_LARGEST = {3: 2**7, 5: 2**15, 6: _LIMIT, 2: 2**8, 4: 2**16, 9: 1}
# Operators that move values unchanged: how many of their inputs are values (None: all).
_MOVES = {
    "Concat": None, "Expand": 1, "Flatten": 1, "Identity": 1, "Reshape": 1, "Slice": 1, "Split": 1,
    "Squeeze": 1, "Tile": 1, "Transpose": 1, "Unsqueeze": 1, "Where": None,
}  # fmt: skip
_INDEXES = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
_SHRINKS = ("Abs", "Clip", "Div", "Max", "Min", "Mod", "Neg", "Pad", "ReduceMax", "ReduceMin")
_SUMS = ("CumSum", "ReduceSum")
_POSITIONS = ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK")


@functools.cache
def _core() -> Any:
    """The process's only core, never freed.

    The first core installs a signal stack in its thread. Freed in another thread, it leaves that
    stack dangling, and the next signal is a segmentation fault (2026.4).
    """
    import openvino

    return openvino.Core()


class OvSession(Session):
    """A compiled model of OpenVINO on the CPU, and one request."""

    backend, runtime = "openvino_onnx", "OpenVINO"

    @classmethod
    def demand(cls, exported: Exported, args: Args) -> None:
        """Refuse other devices, and dtypes that it would compute in float32."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if any(t.device.type != "cpu" for t in tensors):
            raise Unsupported("OpenVINO runs on CPUs only")
        for dtype in (*(t.dtype for t in tensors), *(dtype for _, _, dtype in exported.outputs)):
            if dtype not in _TAKEN:
                raise Unsupported(f"OpenVINO does not compute in {dtype}")
        _demand_small_integers(exported.model)

    def load(self, model: Any) -> None:
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # torch's threads use the same cores
        }
        core = _core()
        read = core.read_model(model.SerializeToString())
        self._request = core.compile_model(read, "CPU", settings).create_infer_request()
        self._tensor = openvino.Tensor

    def bind(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        shared = self._tensor(tensor.detach().numpy(), shared_memory=True)
        self._request.set_tensor(name, shared)

    def run(self) -> None:
        self._request.infer(share_outputs=True)  # otherwise it copies them into a dictionary


def _demand_small_integers(model: Any) -> None:
    """Refuse a model (``onnx.ModelProto``) that may compute or return an integer above 32 bits.

    Propagates the largest possible magnitude of each integer through the model; inputs are
    unbounded. Indices are not checked, since an out-of-range index is an error in torch too.
    """
    import onnx

    graph = model.graph
    types = {
        value.name: value.type.tensor_type
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    largest = {value.name: _magnitude(value) for value in graph.initializer}
    largest |= {v.name: math.inf for v in graph.input if types[v.name].elem_type == _INT64}
    for node in graph.node:
        if node.op_type == "Constant":
            value = onnx.helper.get_node_attr_value(node, node.attribute[0].name)
            made = _magnitude(value)
        else:
            made = _through(node, largest, types)
        each = dict.fromkeys(node.output, made)
        if node.op_type == "TopK":  # output 0 holds values, output 1 positions
            each[node.output[0]] = largest.get(node.input[0], math.inf)
        largest |= {name: most for name, most in each.items() if _is_wide(name, types)}
    for value in graph.output:
        if _is_wide(value.name, types) and largest.get(value.name, math.inf) > _LIMIT:
            raise Unsupported("an output has 64-bit integers, which OpenVINO cuts to 32 bits")


def _is_wide(name: str, types: dict[str, Any]) -> bool:
    """Whether a value has 64 bits, or an unknown type."""
    return name not in types or types[name].elem_type == _INT64


def _through(node: Any, largest: dict[str, float], types: dict[str, Any]) -> float:
    """The largest magnitude of an operator's results; raises Unsupported if it may overflow."""
    operator = node.op_type
    values = list(node.input)
    if operator in _MOVES:
        values = values[: _MOVES[operator]]
    elif operator in _INDEXES:
        del values[1]
    known = [largest[name] for name in values if name in largest]
    most = max(known, default=math.inf)
    if operator in _MOVES or (operator in _INDEXES and not _accumulates(node)):
        return most
    told = types.get(node.input[0]) if node.input else None
    count = math.prod(d.dim_value or math.inf for d in told.shape.dim) if told else math.inf
    if operator in _SHRINKS:
        made = most
    elif operator in ("Add", "Sub", "Sum"):
        made = sum(known)
    elif operator == "Mul":
        made = math.prod(known)
    elif operator in _SUMS:
        made = largest.get(node.input[0], math.inf) * count
    elif operator in _POSITIONS:
        made = count
    elif operator == "Cast" and not known and told is not None:
        made = _LARGEST.get(told.elem_type, math.inf)
    else:
        made = math.inf
    grows = made > _LIMIT and any(_is_wide(name, types) for name in node.output)
    if known and (most > _LIMIT or grows):
        raise Unsupported(f"OpenVINO computes {operator} of 64-bit integers in 32 bits")
    return made


def _accumulates(node: Any) -> bool:
    """Whether a scatter adds or multiplies values at the same index."""
    return any(a.name == "reduction" and a.s in (b"add", b"mul") for a in node.attribute)


def _magnitude(value: Any) -> float:
    """The largest of a constant's 64-bit integers; 0 if it has none."""
    import onnx

    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value) if value.data_type == _INT64 else ()
    array = np.asarray(value)
    if array.dtype.kind != "i" or not array.size:
        return 0.0
    return float(max(abs(int(array.min())), abs(int(array.max()))))


openvino_onnx = functools.partial(compile_graph, OvSession)
