"""An ONNX model as something to call: its tensors are bound to a runtime without copies."""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.backends.onnx.model import Exported, with_constants
from autocompile.runtime.graphs import is_weight
from autocompile.runtime.versions import count_fused_steps, stamp

__all__ = ["Session"]


class Session(abc.ABC):
    """Runs an exported graph; called with the graph's arguments, returns what the graph returns.

    A runtime is five methods: it refuses, loads a model, binds an input and an output, and runs.

    Args:
        exported: the graph.
        args: the arguments that it was exported for.
        baked: parameters become constants of the session, which is built anew when they change.

    Raises:
        Unsupported: the runtime refuses the model, or the device.
    """

    backend: ClassVar[str]
    """As it is asked for in ``torch.compile``."""
    runtime: ClassVar[str]
    """What runs the model, for messages."""

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
        """Refuse with :class:`Unsupported` what this runtime would not compute as torch does."""

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
        """Run once, with what is bound."""

    def _build(self, args: Sequence[Any]) -> None:
        """A session with the weights as they are now."""
        # Read before the weights are: what changes in between is seen at the next call.
        weights = [args[i] for _, i in self._baked]
        stamps = [stamp(w) for w in weights]
        model = self._exported.model
        if self._baked:
            model = with_constants(model, {name: args[i] for name, i in self._baked})
        self.load(model)
        # Known from now on: what could not be loaded leaves the old weights for old.
        self._pointers = [0] * len(self._bound)
        self._held = [w.detach() for w in weights]  # meanwhile no other weight has their address
        self._stamps = stamps

    def __call__(self, *args: Any) -> Any:
        with self._lock:  # what is bound is one, and a run gives the interpreter's lock away
            return self._run(args)

    def _run(self, args: Sequence[Any]) -> Any:
        for (_, i), known in zip(self._baked, self._stamps, strict=True):
            if stamp(args[i]) != known:
                self._build(args)
                break
        kept = []  # until the run is over
        for place, (name, i) in enumerate(self._bound):
            tensor = args[i]
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
                kept.append(tensor)
            pointer = tensor.data_ptr()
            # Shapes and types are this session's: the same address is the same binding.
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
