"""The Dynamo backend ``onnxrt``: runs forward passes in ONNX Runtime.

torch had such a backend until 2.8. This one exports each graph with
``torch.onnx.export(dynamo=True)``. Options: see :mod:`autocompile.runtime.backends.onnx`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from autocompile.runtime.backends.onnx import OnnxSession, Unsupported, compile_graph


class OrtSession(OnnxSession):
    """A session of ONNX Runtime, on a CPU or on a CUDA device."""

    backend, runtime = "onnxrt", "ONNX Runtime"

    def load(self, model: Any) -> None:
        self._stream = _stream(self.device)
        self._session = _session(model, self.device, self._stream)
        self._binding = self._session.io_binding()
        self._types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*model.graph.input, *model.graph.output)
        }

    def bind(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        bind = (
            self._binding.bind_input if kind == "input" else self._binding.bind_output
        )
        device, shape = self.device, tuple(tensor.shape)
        bind(
            name,
            device.type,
            device.index or 0,
            self._types[name],
            shape,
            tensor.data_ptr(),
        )

    def run(self) -> None:
        stream = _stream(self.device)
        if stream and not (stream.cuda_stream and stream == self._stream):
            # ONNX Runtime reads stream 0, torch's default, as "none" and uses its own stream.
            stream.synchronize()
        self._session.run_with_iobinding(self._binding)


def missing_provider(device: torch.device) -> str:
    """Why ONNX Runtime cannot compute on a device; empty if it can."""
    try:
        import onnxruntime
    except ImportError as error:
        return f"onnxruntime cannot be imported: {error}"[:160]
    provider = f"{device.type.upper()}ExecutionProvider"
    if provider in onnxruntime.get_available_providers():
        return ""
    return f"the onnxruntime here has no {provider} (for CUDA: onnxruntime-gpu)"


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _session(model: Any, device: torch.device, stream: torch.cuda.Stream | None) -> Any:
    import onnxruntime

    if reason := missing_provider(device):
        raise Unsupported(reason)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would busy-wait after a call and compete with the next work for cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if stream is not None:
        cuda = {
            "device_id": device.index or 0,
            "user_compute_stream": str(stream.cuda_stream),
        }
        providers.insert(0, ("CUDAExecutionProvider", cuda))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)


onnxrt = functools.partial(compile_graph, OrtSession)
