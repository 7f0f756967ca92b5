"""Exports a graph with fixed shapes to an ONNX model."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = [
    "Args",
    "Exported",
    "Graph",
    "Unsupported",
    "export",
    "first_line",
    "with_constants",
]

Graph = torch.fx.GraphModule
Args = Sequence[Any]

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
        raise Unsupported(first_line(error)) from None
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


def _demand_pure(program: torch.export.ExportedProgram) -> None:
    """Refuse programs that export without an error but compute something else."""
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise Unsupported("it writes to its inputs")
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _never_drops(node):
            raise Unsupported(f"{node.target} draws random numbers")
        if torch.Tag.dynamic_output_shape in tags:
            raise Unsupported(f"the shape of what {node.target} returns depends on values")


def _demand_as_in_torch(model: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse other types or shapes than torch's: a runtime would read or write out of bounds."""
    for value in (*model.graph.input, *model.graph.output):
        if value.name in tensors:
            tensor, told = tensors[value.name], value.type.tensor_type
            sizes = [d.dim_value for d in told.shape.dim if d.HasField("dim_value")]
            if told.elem_type != _ELEMENTS.get(tensor.dtype):
                raise Unsupported(f"{value.name} is of {tensor.dtype} in torch, not in the model")
            if len(sizes) == len(told.shape.dim) != 0 and sizes != list(tensor.shape):
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


def first_line(error: BaseException) -> str:
    """The first line of the innermost cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


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
