"""The Dynamo backend ``openvino_onnx``: runs forward passes in OpenVINO, in full precision.

OpenVINO's own backend ``openvino`` (2026.4) computes in bfloat16 on CPUs that support it and
returns memory that its next call overwrites. This one exports each graph to ONNX, like ``onnxrt``.
CPUs only. OpenVINO computes 64-bit integers in 32 bits there; graphs that might need more are left
to torch or refused. Options: see :mod:`autocompile.runtime.backends.onnx.graph`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autocompile.runtime.backends.onnx.graph import compile_graph
from autocompile.runtime.backends.onnx.integers import demand_small_integers
from autocompile.runtime.backends.onnx.model import Exported, Unsupported, first_line
from autocompile.runtime.backends.onnx.session import Session

__all__ = ["openvino_onnx"]

_TAKEN = (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool)


def openvino_onnx(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for OpenVINO; arguments and errors as in ``compile_graph``."""
    return compile_graph(graph, inputs, OvSession, mode, options)


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
    def demand(cls, exported: Exported, args: Sequence[Any]) -> None:
        """Refuse other devices, and dtypes that it would compute in float32."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if any(t.device.type != "cpu" for t in tensors):
            raise Unsupported("OpenVINO runs on CPUs only")
        for dtype in (*(t.dtype for t in tensors), *(dtype for _, _, dtype in exported.outputs)):
            if dtype not in _TAKEN:
                raise Unsupported(f"OpenVINO does not compute in {dtype}")
        demand_small_integers(exported.model)

    def load(self, model: Any) -> None:
        """Compile the model and create its request."""
        import openvino

        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # torch's threads use the same cores
        }
        try:
            core = _core()
            read = core.read_model(model.SerializeToString())
            self._request = core.compile_model(read, "CPU", settings).create_infer_request()
        except Exception as error:
            raise Unsupported(first_line(error)) from None
        self._tensor = openvino.Tensor

    def bind_input(self, name: str, tensor: torch.Tensor) -> None:
        """Bind as an array that shares the tensor's memory."""
        shared = self._tensor(tensor.detach().numpy(), shared_memory=True)
        self._request.set_tensor(name, shared)

    bind_output = bind_input

    def run(self) -> None:
        """Run once."""
        self._request.infer(share_outputs=True)  # otherwise it copies them into a dictionary
