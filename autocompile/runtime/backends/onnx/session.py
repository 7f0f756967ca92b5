"""A callable ONNX model whose tensors are bound to a runtime without copies."""

from __future__ import annotations

import abc
import threading
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from autocompile.runtime.backends.onnx.model import (
    Args,
    Exported,
    Graph,
    Unsupported,
    export,
    first_line,
    with_constants,
)
from autocompile.runtime.graphs import count_fused_steps, is_weight, stamp

__all__ = ["Session"]


class Session(abc.ABC):
    """Runs an exported graph: takes the graph's arguments and returns its result.

    A runtime implements the four abstract methods. With ``baked``, parameters are constants of the
    session, which is rebuilt when they change.

    Raises:
        Unsupported: the graph cannot be exported, or the runtime refuses the model or the device.
    """

    backend: ClassVar[str]
    """Its name in ``torch.compile``."""
    runtime: ClassVar[str]
    """The runtime's name in messages."""

    def __init__(self, graph: Graph, args: Args, baked: bool) -> None:
        self._exported, self._lock = self.export(graph, args), threading.Lock()
        self.device = next(
            (a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu")
        )
        inputs = self._exported.inputs
        self._baked = [(name, i) for name, i in inputs if baked and is_weight(args[i])]
        self._bound = [each for each in inputs if each not in self._baked]
        if self._baked:
            count_fused_steps()
        self._build(args)

    @classmethod
    def export(cls, graph: Graph, args: Args) -> Exported:
        """The graph's model, which this runtime computes like torch; else raises Unsupported."""
        exported = export(graph, args)
        cls.demand(exported, args)
        return exported

    @classmethod
    @abc.abstractmethod
    def demand(cls, exported: Exported, args: Args) -> None:
        """Raise :class:`Unsupported` if this runtime would not compute the same as torch."""

    @abc.abstractmethod
    def load(self, model: Any) -> None:
        """Make a model (``onnx.ModelProto``) ready to run on :attr:`device`; may raise."""

    @abc.abstractmethod
    def bind(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        """Read an ``input`` from, or write an ``output`` to this contiguous memory from now on."""

    @abc.abstractmethod
    def run(self) -> None:
        """Run once with the bound tensors, after torch's queued work on the device."""

    def _build(self, args: Args) -> None:
        # Read the stamps before the weights: a change in between shows at the next call.
        weights = {name: args[i] for name, i in self._baked}
        stamps = [stamp(w) for w in weights.values()]
        model = self._exported.model
        model = with_constants(model, weights) if weights else model
        try:
            self.load(model)
        except ImportError:  # the runtime is not installed
            raise
        except Exception as error:  # whatever the runtime raises
            raise Unsupported(first_line(error)) from None
        # Only after a successful load: otherwise the old weights must stay stale.
        self._pointers = [0] * len(self._bound)
        self._held = [w.detach() for w in weights.values()]  # keeps addresses from being reused
        self._stamps = stamps

    def __call__(self, *args: Any) -> Any:
        with self._lock:  # bindings are shared, and a run releases the GIL
            return self._run(args)

    def _run(self, args: Args) -> Any:
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
                self.bind("input", name, tensor)
        results = []
        for name, shape, dtype in self._exported.outputs:
            result = torch.empty(shape, dtype=dtype, device=self.device)
            results.append(result)
            self.bind("output", name, result)
        self.run()
        made = iter(results)
        leaves = [next(made) if leaf is torch.Tensor else leaf for leaf in self._exported.leaves]
        return pytree.tree_unflatten(leaves, self._exported.spec)
