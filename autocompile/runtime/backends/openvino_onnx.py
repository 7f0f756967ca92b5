"""The Dynamo backend ``openvino_onnx``: runs forward passes in OpenVINO, in full precision.

OpenVINO's own backend ``openvino`` (2026.4) computes in bfloat16 on CPUs that support it and
returns memory that its next call overwrites. This one exports each graph to ONNX, like ``onnxrt``.
CPUs only. OpenVINO computes 64-bit integers in 32 bits there; graphs that might need more are
refused. Options: see :mod:`autocompile.runtime.backends.onnx`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from autocompile.runtime.backends.onnx import OnnxSession, Unsupported, compile_graph

_INT64, _BOOL = 7, 9  # of onnx.TensorProto
_COMPUTED = (1, 2, 6, _INT64, _BOOL, 10)  # FLOAT, UINT8, INT32, FLOAT16
_SMALL = 2**15  # products of two such constants fit into 32 bits
# Operators that move values unchanged, or look them up.
_MOVES = {
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape",
    "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
}  # fmt: skip


@functools.cache
def _core() -> Any:
    """The process's only core, never freed.

    The first core installs a signal stack in its thread. Freed in another thread, it leaves that
    stack dangling, and the next signal is a segmentation fault (2026.4).
    """
    import openvino

    return openvino.Core()


class OvSession(OnnxSession):
    """A compiled model of OpenVINO on the CPU, and one request."""

    backend, runtime = "openvino_onnx", "OpenVINO"

    def load(self, model: Any) -> None:
        import openvino

        if self.device.type != "cpu":
            raise Unsupported("OpenVINO runs on CPUs only")
        _demand_exact(self._exported.model)
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
        # Otherwise it copies them into a dictionary.
        self._request.infer(share_outputs=True)


def _demand_exact(model: Any) -> None:
    """Refuse a model (``onnx.ModelProto``) of which a value may be cut or rounded.

    It would compute other types in float32, and 64-bit integers in 32 bits. Integers of inputs and
    casts and large constants may need more. They may be moved and looked up, and be indices (out of
    range they are errors in torch too); any other operator on them is refused.
    """
    import onnx

    graph = model.graph
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    for value in (*graph.input, *graph.output):
        if kinds[value.name] not in _COMPUTED:
            name = onnx.TensorProto.DataType.Name(kinds[value.name])
            raise Unsupported(f"OpenVINO does not compute in {name}")
    large = {value.name for value in graph.input if kinds[value.name] == _INT64}
    large |= {value.name for value in graph.initializer if _is_large(value)}
    for node in graph.node:
        kind = node.op_type
        is_large = any(name in large for name in node.input)
        if is_large and kind not in _MOVES:
            raise Unsupported(f"OpenVINO computes {kind} of 64-bit integers in 32 bits")
        is_large |= kind == "Constant" and any(
            map(_is_large, (a.t for a in node.attribute))
        )
        is_large |= kind == "Cast" and kinds.get(node.input[0]) != _BOOL
        if is_large:
            large |= {name for name in node.output if kinds.get(name, _INT64) == _INT64}
    if any(value.name in large for value in graph.output):
        raise Unsupported(
            "an output has 64-bit integers, which OpenVINO cuts to 32 bits"
        )


def _is_large(constant: Any) -> bool:
    import onnx

    if constant.data_type != _INT64:
        return False
    values = onnx.numpy_helper.to_array(constant)
    return bool(values.size) and max(int(values.max()), -int(values.min())) > _SMALL


openvino_onnx = functools.partial(compile_graph, OvSession)
