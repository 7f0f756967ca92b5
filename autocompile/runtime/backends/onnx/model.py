"""Exports a graph with fixed shapes to an ONNX model."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
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
        leaves: ``("output", i)``, ``("argument", i)`` or ``("constant", value)`` for each leaf of
            the graph's result.
        spec: the result's pytree structure.
    """

    model: Any
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, torch.Size, torch.dtype], ...]
    leaves: tuple[tuple[str, Any], ...]
    spec: Any


class _Flat(torch.nn.Module):
    """A graph as a function from tensors to tensors; other arguments are constants."""

    def __init__(self, graph: Graph, args: Args, wanted: set[int]) -> None:
        super().__init__()
        self._graph, self._wanted = graph, wanted
        self._tensors = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        self._args = [None if isinstance(arg, torch.Tensor) else arg for arg in args]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args = list(self._args)
        for index, tensor in zip(self._tensors, tensors, strict=True):
            args[index] = tensor
        leaves = pytree.tree_leaves(self._graph(*args))
        return tuple(x for i, x in enumerate(leaves) if i in self._wanted)


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
    if not all(map(_is_plain, tensors.values())):
        raise Unsupported("an argument is an empty, complex or sparse tensor")
    if len({t.device for t in tensors.values()}) > 1:
        raise Unsupported("its arguments are on several devices")
    leaves, spec, examples = _returned(graph, args)
    wanted = {i for i, (kind, _) in enumerate(leaves) if kind == "output"}
    names = [f"input_{i}" for i in tensors]
    results = [f"output_{i}" for i in range(len(wanted))]
    try:
        with _exporting():
            flat = _Flat(graph, args, wanted)
            program = torch.export.export(flat, tuple(tensors.values()), strict=False)
            program = program.run_decompositions({})  # removes in-place operators
            _demand_plain(program)
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
        leaves,
        spec,
    )


def _returned(
    graph: Graph, args: Args
) -> tuple[tuple[tuple[str, Any], ...], Any, list[torch.Tensor]]:
    """Leaves, structure and example outputs of the graph, from a run on copies."""
    copies = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
    places = {id(copy): i for i, copy in enumerate(copies) if isinstance(copy, torch.Tensor)}
    devices = list({x.device for x in copies if isinstance(x, torch.Tensor) and x.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        values, spec = pytree.tree_flatten(graph(*copies))
    leaves: list[tuple[str, Any]] = []
    examples: list[torch.Tensor] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            leaves.append(("constant", value))
        elif id(value) in places:
            leaves.append(("argument", places[id(value)]))
        else:
            if not _is_plain(value):
                raise Unsupported("an output is an empty, complex or sparse tensor")
            if any(value.device != x.device for x in copies if isinstance(x, torch.Tensor)):
                raise Unsupported("an output is on another device than the arguments")
            leaves.append(("output", len(examples)))
            examples.append(value)
    return tuple(leaves), spec, examples


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex() and bool(tensor.numel())


def _demand_plain(program: torch.export.ExportedProgram) -> None:
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
