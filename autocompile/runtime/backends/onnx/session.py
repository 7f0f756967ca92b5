"""A callable ONNX model whose tensors are bound to a runtime without copies."""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.backends.onnx.model import Exported, with_constants
from autocompile.runtime.graphs import is_weight
from autocompile.runtime.weights.versions import count_fused_steps, stamp

__all__ = ["Session"]


class Session(abc.ABC):
    """Runs an exported graph: takes the graph's arguments and returns its result.

    A runtime implements the five abstract methods.

    Args:
        exported: the graph.
        args: the arguments that it was exported for.
        baked: make parameters constants of the session, and rebuild it when they change.

    Raises:
        Unsupported: the runtime refuses the model, or the device.
    """

    backend: ClassVar[str]
    """Its name in ``torch.compile``."""
    runtime: ClassVar[str]
    """The runtime's name in messages."""

    def __init__(self, exported: Exported, args: Sequence[Any], baked: bool) -> None:
        self._exported, self._lock = exported, threading.Lock()
        self.device = next(
            (a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu")
        )
        self._baked = [(name, i) for name, i in exported.inputs if baked and is_weight(args[i])]
        constant = {name for name, _ in self._baked}
        self._bound = [(name, i) for name, i in exported.inputs if name not in constant]
        if self._baked:
            count_fused_steps()
        self._build(args)

    @classmethod
    @abc.abstractmethod
    def demand(cls, exported: Exported, args: Sequence[Any]) -> None:
        """Raise :class:`Unsupported` if this runtime would not compute the same as torch."""

    @abc.abstractmethod
    def load(self, model: Any) -> None:
        """Make a model (``onnx.ModelProto``) ready to run on :attr:`device`."""

    @abc.abstractmethod
    def bind_input(self, name: str, tensor: torch.Tensor) -> None:
        """Read an input from this contiguous tensor's memory from now on."""

    @abc.abstractmethod
    def bind_output(self, name: str, tensor: torch.Tensor) -> None:
        """Write an output to this contiguous tensor's memory at the next run."""

    @abc.abstractmethod
    def run(self) -> None:
        """Run once with the bound tensors."""

    def _build(self, args: Sequence[Any]) -> None:
        """Build the session with the current weights."""
        # Read the stamps before the weights: a change in between shows at the next call.
        weights = [args[i] for _, i in self._baked]
        stamps = [stamp(w) for w in weights]
        model = self._exported.model
        if self._baked:
            model = with_constants(model, {name: args[i] for name, i in self._baked})
        self.load(model)
        # Only after a successful load: otherwise the old weights must stay stale.
        self._pointers = [0] * len(self._bound)
        self._held = [w.detach() for w in weights]  # keeps their addresses from being reused
        self._stamps = stamps

    def __call__(self, *args: Any) -> Any:
        with self._lock:  # bindings are shared, and a run releases the GIL
            return self._run(args)

    def _run(self, args: Sequence[Any]) -> Any:
        for (_, i), known in zip(self._baked, self._stamps, strict=True):
            if stamp(args[i]) != known:
                self._build(args)
                break
        kept = []  # keeps copies alive until the run ends
        for place, (name, i) in enumerate(self._bound):
            tensor = args[i]
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
                kept.append(tensor)
            pointer = tensor.data_ptr()
            # Shapes and dtypes are fixed, so an equal address means an equal binding.
            if pointer != self._pointers[place]:
                self._pointers[place] = pointer
                self.bind_input(name, tensor)
        results = []
        for name, shape, dtype in self._exported.outputs:
            result = torch.empty(shape, dtype=dtype, device=self.device)
            results.append(result)
            self.bind_output(name, result)
        self.run()
        leaves = [
            results[value] if kind == "output" else args[value] if kind == "argument" else value
            for kind, value in self._exported.leaves
        ]
        return pytree.tree_unflatten(leaves, self._exported.spec)
