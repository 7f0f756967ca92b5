"""Compiles a Dynamo graph to ONNX models, or refuses it where a runtime cannot run it like torch.

Options (``torch.compile(..., options={...})``):

``weights``
    ``"live"`` (default): parameters are inputs of the session, so every change takes effect.
    ``"baked"``: they are constants, which the runtime packs and folds. The session is rebuilt when
    a weight changes (see :class:`autocompile.runtime.graphs.FrozenWeights`).
"""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.utils import _pytree as pytree

from autocompile.errors import first_words
from autocompile.runtime.graphs import (
    FrozenWeights,
    attributes_lifted,
    count_fused_steps,
    is_weight,
)

Graph = torch.fx.GraphModule
Args = Sequence[Any]
Compiled = Callable[..., Any]

_MOST_SESSIONS = 16  # of one graph with dynamic shapes: each holds memory

# Types of onnx.TensorProto.
_ELEMENTS = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.uint16: 4, torch.int16: 5,
    torch.int32: 6, torch.int64: 7, torch.bool: 9, torch.float16: 10, torch.float64: 11,
    torch.uint32: 12, torch.uint64: 13, torch.bfloat16: 16,
}  # fmt: skip


class Unsupported(Exception):
    """A runtime cannot run this graph like torch; the message says why in one line."""


@dataclass(frozen=True)
class Output:
    """An output of an exported graph, whose memory the caller provides."""

    name: str
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True)
class OnnxGraph:
    """A graph as an ``onnx.ModelProto``, of which every tensor argument is an input.

    Attributes:
        inputs: the name of each input of the model, and its place among the graph's arguments.
        results: what the graph returns, with ``torch.Tensor`` for each output of the model in turn.
    """

    model: Any
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[Output, ...]
    results: tuple[Any, ...]


class _OnTensors:
    """A graph as a function from tensors to tensors; its other arguments are constants.

    Attributes:
        results: what the last call of the graph returned, with ``torch.Tensor`` for each tensor.
    """

    def __init__(self, graph: Graph, args: Args) -> None:
        self._graph, self._args = graph, args
        self.results: list[Any] = []

    def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = iter(given)
        args = [next(left) if isinstance(a, torch.Tensor) else a for a in self._args]
        made = self._graph(*args)
        self.results = [
            torch.Tensor if isinstance(x, torch.Tensor) else x for x in made
        ]
        return tuple(x for x in made if isinstance(x, torch.Tensor))


class _AsModule(torch.nn.Module):
    """What torch.export takes, which knows nothing of the graph's own attributes.

    The graph is no submodule of it, and no argument an attribute: torch would lift them as weights,
    and refuses attributes that a call changes.
    """

    def __init__(self, function: _OnTensors) -> None:
        super().__init__()
        self._function = function

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._function(*given)


def _export(graph: Graph, args: Args) -> OnnxGraph:
    """Export a graph for the shapes of these arguments, tensors and numbers, or refuse it."""
    tensors = _tensors_of(args)
    function = _OnTensors(graph, args)
    names = {f"input_{place}": place for place in tensors}
    try:
        with _exporting():
            program = _program_of(function, tensors.values())
            examples = _outputs_of(program)
            _demand_plain("an output", [*tensors.values(), *examples.values()])
            model = _model_of(program, list(names), list(examples))
    except Unsupported:
        raise
    except Exception as error:  # whatever torch or its exporter raises
        raise Unsupported(_cause(error)) from None
    given = {name: tensors[place] for name, place in names.items()}
    _demand_as_in_torch(model, given | examples)
    # In the model's order, which leaves out what the graph does not read.
    inputs = [(value.name, names[value.name]) for value in model.graph.input]
    outputs = [Output(name, x.shape, x.dtype) for name, x in examples.items()]
    return OnnxGraph(model, tuple(inputs), tuple(outputs), tuple(function.results))


def _tensors_of(args: Args) -> dict[int, torch.Tensor]:
    """The tensors among a graph's arguments by their place, without gradients."""
    others = [a for a in args if not isinstance(a, torch.Tensor)]
    if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(others)):
        # They would become constants.
        raise Unsupported("an argument is a list of tensors")
    found = {i: a.detach() for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
    _demand_plain("an argument", found.values())
    return found


def _program_of(
    function: _OnTensors, tensors: Collection[torch.Tensor]
) -> torch.export.ExportedProgram:
    module = _AsModule(function)
    exported = torch.export.export(module, tuple(tensors), strict=False)
    # With them torch 2.13 writes guards, which name variables of Dynamo's frame. It checks its own.
    exported._example_inputs = None
    # Without in-place operators, which these decompositions replace.
    program: torch.export.ExportedProgram = exported.run_decompositions({})
    _demand_pure(program)
    return program


def _outputs_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The outputs of a program by their names in the model, as tensors without memory."""
    nodes = program.graph.output_node().args[0]
    return {f"output_{i}": node.meta["val"] for i, node in enumerate(nodes)}


def _model_of(
    program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]
) -> Any:
    """The program as an ``onnx.ModelProto`` with these names."""
    made = torch.onnx.export(
        program,
        dynamo=True,
        input_names=inputs,
        output_names=outputs,
        verbose=False,
    )
    assert made is not None
    return made.model_proto


def _demand_plain(what: str, tensors: Collection[torch.Tensor]) -> None:
    for x in tensors:
        if any(isinstance(size, torch.SymInt) for size in x.shape):
            raise Unsupported(f"the shape of {what} depends on values")
        if x.layout is not torch.strided or x.is_complex() or not x.numel():
            raise Unsupported(f"{what} is an empty, complex or sparse tensor")
    if len({x.device for x in tensors}) > 1:
        raise Unsupported(f"{what} is on another device than the others")


def _demand_pure(program: torch.export.ExportedProgram) -> None:
    """Refuse programs that export without an error but compute something else."""
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise Unsupported("it writes to its inputs")
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _never_drops(node):
            raise Unsupported(f"{node.target} draws random numbers")


def _demand_as_in_torch(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse other types or shapes than torch's: a runtime would read or write out of bounds."""
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in tensors:
            continue
        tensor, kind = tensors[value.name], value.type.tensor_type
        if kind.elem_type != _ELEMENTS.get(tensor.dtype):
            raise Unsupported(
                f"{value.name} is of {tensor.dtype} in torch, not in the model"
            )
        dimensions = kind.shape.dim
        sizes = [d.dim_value for d in dimensions if d.HasField("dim_value")]
        # The exporter may leave sizes out, which then says nothing about them.
        is_known = len(sizes) == len(dimensions) != 0
        if is_known and sizes != list(tensor.shape):
            raise Unsupported(
                f"{value.name} is {tuple(tensor.shape)} in torch, not {sizes}"
            )


def _never_drops(node: torch.fx.Node) -> bool:
    """Whether the operator draws random numbers only for dropout, and its dropout is off."""
    # Of attention: dropout_p. Of recurrent layers: dropout, in training only.
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if "dropout_p" in names:
        return bool(given.get("dropout_p", 0.0) == 0.0)
    return "dropout" in names and (
        given.get("dropout") == 0.0 or given.get("train") is False
    )


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Without gradients, and without the exporter's logs and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _cause(error: BaseException) -> str:
    """The first words of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_words(error)


def _with_constants(model: Any, weights: Mapping[str, torch.Tensor]) -> Any:
    """A copy of the model in which these inputs are constants."""
    import onnx

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


class OnnxSession(abc.ABC):
    """Runs an exported graph: takes the graph's arguments and returns its result.

    With ``baked``, parameters are constants of the session, which is loaded again when they change.
    Raises :class:`Unsupported` if the graph cannot be exported, or the runtime refuses it.
    """

    backend: ClassVar[str]  # its name in ``torch.compile``
    runtime: ClassVar[str]  # the runtime's name in messages

    def __init__(self, graph: Graph, args: Args, baked: bool) -> None:
        self._exported, self._lock = _export(graph, args), threading.Lock()
        self.device = next(
            (a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu")
        )
        inputs = self._exported.inputs
        self._baked = {name: i for name, i in inputs if baked and is_weight(args[i])}
        self._bound = [(name, i) for name, i in inputs if name not in self._baked]
        if self._baked:
            count_fused_steps()
        self._build(args)

    @abc.abstractmethod
    def load(self, model: Any) -> None:
        """Make a model (``onnx.ModelProto``) ready to run on :attr:`device`.

        May raise; must raise :class:`Unsupported` if it would not compute the same as torch.
        """

    @abc.abstractmethod
    def bind(self, kind: str, name: str, tensor: torch.Tensor) -> None:
        """Read an ``input`` from, or write an ``output`` to this contiguous memory from now on."""

    @abc.abstractmethod
    def run(self) -> None:
        """Run once with the bound tensors, after torch's queued work on the device."""

    def _build(self, args: Args) -> None:
        weights = FrozenWeights(args, self._baked.values())
        constants = {name: args[i] for name, i in self._baked.items()}
        try:
            self.load(_with_constants(self._exported.model, constants))
        except (ImportError, Unsupported):
            raise  # an ImportError: the runtime is not installed
        except Exception as error:  # whatever the runtime raises
            raise Unsupported(_cause(error)) from None
        # Only after a successful load: otherwise the old weights must stay stale.
        self._pointers, self._weights = [0] * len(self._bound), weights

    def __call__(self, *args: Any) -> Any:
        with self._lock:  # bindings are shared, and a run releases the GIL
            return self._run(args)

    def _run(self, args: Args) -> Any:
        if self._weights.are_stale(args):
            self._build(args)
        copies = []  # they live until the run ends
        for place, (name, i) in enumerate(self._bound):
            tensor = args[i]
            if not tensor.is_contiguous():
                tensor = tensor.contiguous()
                copies.append(tensor)
            pointer = tensor.data_ptr()
            # Shapes and dtypes are fixed, so an equal address means an equal binding.
            if pointer != self._pointers[place]:
                self._pointers[place] = pointer
                self.bind("input", name, tensor)
        outputs = []
        for of in self._exported.outputs:
            output = torch.empty(of.shape, dtype=of.dtype, device=self.device)
            outputs.append(output)
            self.bind("output", of.name, output)
        self.run()
        left, results = iter(outputs), self._exported.results
        return tuple(next(left) if x is torch.Tensor else x for x in results)


def compile_graph(
    kind: type[OnnxSession],
    graph: Graph,
    inputs: Args,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile a graph of Dynamo, with parameters as inputs and integers for symbolic shapes."""
    weights = _weights_asked(kind, mode, options)
    graph, lifted = attributes_lifted(graph, inputs)
    args = [*inputs, *lifted]
    _demand_no_gradients(kind, args)
    if not any(node.op.startswith("call") for node in graph.graph.nodes):
        return lambda *args: graph.forward(*args, *lifted)

    make = functools.partial(_session, kind, graph, weights == "baked")
    given = graph.graph.find_nodes(op="placeholder")
    # With dynamic shapes, Dynamo captures one graph for all shapes.
    examples = [node.meta.get("example_value") for node in given]
    changing = [i for i, example in enumerate(examples) if _is_symbolic(example)]
    # And one for all values of a float, passed as a tensor that the graph reads with item().
    floats = [i for i, n in enumerate(given) if n.users and all(map(_is_read, n.users))]
    made = _by_shape(make, changing, floats) if changing or floats else make(args)
    return (lambda *args: made(*args, *lifted)) if lifted else made


def _weights_asked(
    kind: type[OnnxSession], mode: str | None, options: Mapping[str, Any] | None
) -> str:
    """The option ``weights``; a ValueError if anything else is asked for."""
    others = dict(options or {})
    weights = others.pop("weights", "live")
    if mode not in (None, "default") or others or weights not in ("live", "baked"):
        raise ValueError(
            f"the {kind.backend} backend has no modes and one option: weights, 'live' or 'baked'"
        )
    return str(weights)


def _demand_no_gradients(kind: type[OnnxSession], args: Args) -> None:
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise RuntimeError(
            f"the {kind.backend} backend computes no gradients: "
            "call the model under torch.no_grad()"
        )


def _session(
    kind: type[OnnxSession], graph: Graph, baked: bool, args: Args
) -> Compiled:
    try:
        # The bound method: of an object Dynamo would copy the attributes, and keep old weights.
        return kind(graph, args, baked).__call__
    except Unsupported as error:
        raise RuntimeError(f"{kind.runtime} cannot run this graph: {error}") from None


@dataclass(frozen=True)
class _Float:
    """Stands for a scalar tensor of which a graph only reads the value."""

    value: float

    def item(self) -> float:
        return self.value


def _by_shape(
    make: Callable[[Args], Compiled], changing: Sequence[int], floats: Sequence[int]
) -> Compiled:
    """One session for each combination of sizes and values at these places of the arguments."""
    sessions: dict[Any, Compiled] = {}

    def call(*args: Any) -> Any:
        args = tuple(_Float(a.item()) if i in floats else a for i, a in enumerate(args))
        varied = [args[i] for i in (*changing, *floats)]
        key = tuple(
            tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in varied
        )
        session = sessions.get(key)
        if session is None:
            # Both the exporter and Dynamo patch torch: one at a time.
            with compile_lock:
                if len(sessions) >= _MOST_SESSIONS:
                    sessions.clear()
                session = sessions.get(key) or sessions.setdefault(key, make(args))
        return session(*args)

    return call


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return value is None or isinstance(
        value, (torch.SymInt, torch.SymFloat, torch.SymBool)
    )


def _is_read(node: torch.fx.Node) -> bool:
    return node.op == "call_method" and node.target == "item"
