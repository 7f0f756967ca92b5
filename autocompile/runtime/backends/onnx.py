"""Compiles a Dynamo graph to ONNX models, or refuses it where a runtime cannot run it like torch.

Options (``torch.compile(..., options={...})``):

``weights``
    ``"live"`` (default): parameters are inputs of the session, so every change takes effect.
    ``"baked"``: they are constants, which the runtime packs and folds. The session is rebuilt when
    a version counter shows a change (see :func:`autocompile.runtime.graphs.stamp`).
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.utils import _pytree as pytree

from autocompile.errors import first_words
from autocompile.runtime.graphs import attributes_lifted, count_fused_steps, is_weight, stamp

Graph = torch.fx.GraphModule
Args = Sequence[Any]
Compiled = Callable[..., Any]

_MOST_SESSIONS = 16  # of one graph with dynamic shapes; least recently used is dropped
_LARGEST_BYTES = 1_900_000_000  # of weights in a model: the limit of a protocol buffer is 2 GiB

# Types of onnx.TensorProto.
_ELEMENTS = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.uint16: 4, torch.int16: 5,
    torch.int32: 6, torch.int64: 7, torch.bool: 9, torch.float16: 10, torch.float64: 11,
    torch.uint32: 12, torch.uint64: 13, torch.bfloat16: 16,
}  # fmt: skip


class Unsupported(Exception):
    """A runtime cannot run this graph like torch; the message says why in one line."""


@dataclass(frozen=True)
class Exported:
    """A graph as an ONNX model.

    Attributes:
        model: ``onnx.ModelProto``; every tensor argument of the graph is an input.
        inputs: (name, index among the graph's arguments) of the model's inputs in order.
        outputs: (name, shape, dtype) of the model's outputs in order.
        leaves: of the graph's result; ``torch.Tensor`` for each output of the model in turn.
        spec: the result's pytree structure.
    """

    model: Any
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, torch.Size, torch.dtype], ...]
    leaves: tuple[Any, ...]
    spec: Any


class _Flat(torch.nn.Module):
    """A graph as a function from tensors to tensors; other arguments are constants.

    ``see`` gets leaves and structure of the whole result.
    """

    def __init__(self, graph: Graph, args: Args, see: Callable[[list[Any], Any], None]) -> None:
        super().__init__()
        self._graph, self._see = graph, see
        self._args = [None if isinstance(arg, torch.Tensor) else arg for arg in args]
        self._tensors = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args = list(self._args)
        for index, tensor in zip(self._tensors, tensors, strict=True):
            args[index] = tensor
        leaves, spec = pytree.tree_flatten(self._graph(*args))
        self._see(leaves, spec)
        return tuple(x for x in leaves if isinstance(x, torch.Tensor))


def export(graph: Graph, args: Args) -> Exported:
    """Export a graph from Dynamo for the shapes of these arguments, tensors and numbers.

    Raises:
        Unsupported: an operator cannot be exported, or the graph draws random numbers, writes to
            its inputs, or takes complex or empty tensors.
    """
    tensors = {i: a.detach() for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
    others = [a for a in args if not isinstance(a, torch.Tensor)]
    if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(others)):
        raise Unsupported("an argument is a list of tensors")  # they would become constants
    _demand_plain("an argument", tensors.values())
    result: list[Any] = []

    def see(leaves: list[Any], spec: Any) -> None:
        result[:] = [torch.Tensor if isinstance(x, torch.Tensor) else x for x in leaves], spec

    names = [f"input_{i}" for i in tensors]
    try:
        with _exporting():
            flat = _Flat(graph, args, see)
            program = torch.export.export(flat, tuple(tensors.values()), strict=False)
            program = program.run_decompositions({})  # removes in-place operators
            _demand_pure(program)
            examples = [node.meta["val"] for node in program.graph.output_node().args[0]]
            _demand_plain("an output", [*tensors.values(), *examples])
            results = [f"output_{i}" for i in range(len(examples))]
            made = torch.onnx.export(
                program, dynamo=True, input_names=names, output_names=results, verbose=False
            )
            assert made is not None
            model = made.model_proto
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(_cause(error)) from None
    order = dict(zip(names, tensors, strict=True))
    outputs = dict(zip(results, examples, strict=True))
    _demand_as_in_torch(model, {n: tensors[i] for n, i in order.items()} | outputs)
    return Exported(
        model,
        tuple((value.name, order[value.name]) for value in model.graph.input),
        tuple((name, x.shape, x.dtype) for name, x in outputs.items()),
        tuple(result[0]),
        result[1],
    )


def _demand_plain(what: str, tensors: Collection[torch.Tensor]) -> None:
    for x in tensors:
        if x.layout is not torch.strided or x.is_complex() or not x.numel():
            raise Unsupported(f"{what} is an empty, complex or sparse tensor")
    if len({x.device for x in tensors}) > 1:
        raise Unsupported(f"{what} is on another device than the others")


def _has_unknown_size(value: Any) -> bool:
    tensors = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return any(isinstance(size, torch.SymInt) for x in tensors for size in x.shape)


def _demand_pure(program: torch.export.ExportedProgram) -> None:
    """Refuse programs that export without an error but compute something else."""
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise Unsupported("it writes to its inputs")
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _never_drops(node):
            raise Unsupported(f"{node.target} draws random numbers")
        # An index by numbers has this tag too; only one by a mask has a size that is not known.
        if torch.Tag.dynamic_output_shape in tags and _has_unknown_size(node.meta["val"]):
            raise Unsupported(f"the shape of what {node.target} returns depends on values")


def _demand_as_in_torch(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse other types or shapes than torch's: a runtime would read or write out of bounds."""
    for value in (*model.graph.input, *model.graph.output):
        if value.name in tensors:
            tensor, kind = tensors[value.name], value.type.tensor_type
            sizes = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
            if kind.elem_type != _ELEMENTS.get(tensor.dtype):
                raise Unsupported(f"{value.name} is of {tensor.dtype} in torch, not in the model")
            if len(sizes) == len(kind.shape.dim) != 0 and sizes != list(tensor.shape):
                raise Unsupported(f"{value.name} is {tuple(tensor.shape)} in torch, not {sizes}")


def _never_drops(node: torch.fx.Node) -> bool:
    """Whether the operator draws random numbers only for dropout, and its dropout is off."""
    # Of attention: dropout_p. Of recurrent layers: dropout, in training only.
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if "dropout_p" in names:
        return bool(given.get("dropout_p", 0.0) == 0.0)
    return "dropout" in names and (given.get("dropout") == 0.0 or given.get("train") is False)


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Without gradients, and without the exporter's logs and warnings."""
    with torch.no_grad(), warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        for name in ("torch.onnx", "onnxscript", "onnx_ir"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield


def _cause(error: BaseException) -> str:
    """The first words of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_words(error)


def with_constants(model: Any, weights: dict[str, torch.Tensor]) -> Any:
    """A copy of the model in which these inputs are constants."""
    import onnx

    size = sum(w.numel() * w.element_size() for w in weights.values())
    if size > _LARGEST_BYTES:
        raise Unsupported(f"{size / 1e9:.1f} GB of weights do not fit into an ONNX model: use live")
    baked = onnx.ModelProto()
    baked.CopyFrom(model)
    for value in [v for v in baked.graph.input if v.name in weights]:
        tensor = weights[value.name].detach().contiguous().cpu()
        made = baked.graph.initializer.add()
        made.name, made.data_type = value.name, value.type.tensor_type.elem_type
        made.dims.extend(tensor.shape)
        made.raw_data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        baked.graph.input.remove(value)
    return baked


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
        self._exported, self._lock = export(graph, args), threading.Lock()
        self.demand(self._exported, args)
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
            raise Unsupported(_cause(error)) from None
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


def compile_graph(
    kind: type[Session],
    graph: Graph,
    inputs: Args,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile a graph for a runtime.

    The graph is Dynamo's, with parameters as inputs, and integers for symbolic shapes.

    Raises:
        ValueError: a mode, or an unknown option (see the module).
        RuntimeError: gradients are required, or the runtime cannot run an operator of the graph.
    """
    baked = _wants_baked(kind.backend, mode, options or {})
    graph, held = attributes_lifted(graph, inputs)
    made = _compiled(graph, [*inputs, *held], kind, baked)
    return (lambda *args: made(*args, *held)) if held else made


def _wants_baked(backend: str, mode: str | None, options: Mapping[str, Any]) -> bool:
    if mode not in (None, "default"):
        raise ValueError(f"the {backend} backend has no modes; {mode!r} was asked for")
    for name in options:
        if name != "weights":
            raise ValueError(f"the {backend} backend has no option {name!r}; it has: weights")
    weights = options.get("weights", "live")
    if weights not in ("live", "baked"):
        raise ValueError(f"weights={weights!r}: the {backend} backend knows 'live' and 'baked'")
    return bool(weights == "baked")


def _compiled(graph: Graph, inputs: Args, kind: type[Session], baked: bool) -> Compiled:
    """Compile a graph that holds no tensors as attributes."""
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        raise RuntimeError(
            f"the {kind.backend} backend computes no gradients: "
            "call the model under torch.no_grad()"
        )
    if not any(node.op.startswith("call") for node in graph.graph.nodes):
        return graph.forward
    # With dynamic shapes, Dynamo captures one graph for all shapes.
    given = graph.graph.find_nodes(op="placeholder")
    changing = {i for i, n in enumerate(given) if _is_symbolic(n.meta.get("example_value"))}
    # And one for all values of a float, passed as a tensor that the graph reads with item().
    numbers = {i for i, n in enumerate(given) if n.users and all(map(_is_read, n.users))}
    if changing | numbers:
        return _ByShape(graph, sorted(changing | numbers), numbers, kind, baked)
    return _for_these(graph, inputs, kind, baked)


def _for_these(graph: Graph, args: Args, kind: type[Session], baked: bool) -> Compiled:
    try:
        # The bound method: of an object Dynamo would copy the attributes, and keep old weights.
        return kind(graph, args, baked).__call__
    except Unsupported as error:
        raise RuntimeError(f"{kind.runtime} cannot run this graph: {error}") from None


@dataclass(frozen=True)
class _Number:
    """Stands for a scalar tensor of which a graph only reads the number."""

    value: float

    def item(self) -> float:
        return self.value


class _ByShape:
    """A graph with dynamic shapes or numbers: one session for each combination.

    ``changing`` are the places of the arguments that differ in size or value, ``numbers`` of those
    that come as scalar tensors of which the graph reads the number.
    """

    def __init__(
        self, graph: Graph, changing: list[int], numbers: Collection[int], *how: Any
    ) -> None:
        self._graph, self._changing, self._numbers, self._how = graph, changing, numbers, how
        self._made: OrderedDict[Any, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        if self._numbers:
            args = tuple(_Number(a.item()) if i in self._numbers else a for i, a in enumerate(args))
        chosen = [args[i] for i in self._changing]
        key = tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in chosen)
        made = self._known(key)
        if made is None:
            # Both the exporter and Dynamo patch torch: one at a time.
            with compile_lock:
                made = self._known(key) or _for_these(self._graph, args, *self._how)
                with self._lock:
                    self._made[key] = made
                    if len(self._made) > _MOST_SESSIONS:
                        self._made.popitem(last=False)
        return made(*args)

    def _known(self, key: Any) -> Compiled | None:
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
            return self._made.get(key)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return value is None or isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _is_read(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"
