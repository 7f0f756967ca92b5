"""Checks that an ONNX model is correct when 64-bit integers are computed in 32 bits (OpenVINO).

Propagates the largest possible magnitude of each integer through the model; inputs are unbounded.
Indices are not checked, since an out-of-range index is an error in torch too.
"""

from __future__ import annotations

import math
from typing import Any

from autocompile.runtime.backends.onnx.model import Unsupported

__all__ = ["demand_small_integers"]

_INT64 = 7  # onnx.TensorProto.INT64
_LIMIT = 2**31 - 1
# Magnitudes by source type of a cast: int8, int16, int32, uint8, uint16, bool.
_LARGEST = {3: 2**7, 5: 2**15, 6: _LIMIT, 2: 2**8, 4: 2**16, 9: 1}
# Operators that move values unchanged: how many of their inputs are values (None: all).
_MOVES = {
    "Concat": None, "Expand": 1, "Flatten": 1, "Identity": 1, "Reshape": 1, "Slice": 1, "Split": 1,
    "Squeeze": 1, "Tile": 1, "Transpose": 1, "Unsqueeze": 1, "Where": None,
}  # fmt: skip
_INDEXES = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND")
_SHRINKS = ("Abs", "Clip", "Div", "Max", "Min", "Mod", "Neg", "Pad", "ReduceMax", "ReduceMin")
_SUMS = ("CumSum", "ReduceSum")
_POSITIONS = ("ArgMax", "ArgMin", "NonZero", "Shape", "Size", "TopK")


def demand_small_integers(model: Any) -> None:
    """Refuse a model (``onnx.ModelProto``) that may compute or return an integer above 32 bits.

    Raises:
        Unsupported: names the operator.
    """
    import onnx

    graph = model.graph
    types = {
        value.name: value.type.tensor_type
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
    largest = {value.name: _of_constant(value) for value in graph.initializer}
    largest |= {v.name: math.inf for v in graph.input if types[v.name].elem_type == _INT64}
    for node in graph.node:
        if node.op_type == "Constant":
            value = onnx.helper.get_node_attr_value(node, node.attribute[0].name)
            made = _of_constant(value) if isinstance(value, onnx.TensorProto) else _magnitude(value)
        else:
            made = _through(node, largest, types)
        each = dict.fromkeys(node.output, made)
        if node.op_type == "TopK":  # output 0 holds values, output 1 positions
            each[node.output[0]] = largest.get(node.input[0], math.inf)
        largest |= {name: most for name, most in each.items() if _is_wide(name, types)}
    for value in graph.output:
        if _is_wide(value.name, types) and largest.get(value.name, math.inf) > _LIMIT:
            raise Unsupported("an output has 64-bit integers, which OpenVINO cuts to 32 bits")


def _is_wide(name: str, types: dict[str, Any]) -> bool:
    """Whether a value has 64 bits, or an unknown type."""
    return name not in types or types[name].elem_type == _INT64


def _through(node: Any, largest: dict[str, float], types: dict[str, Any]) -> float:
    """The largest magnitude of an operator's results.

    Raises:
        Unsupported: it may overflow.
    """
    operator = node.op_type
    values = list(node.input)
    if operator in _MOVES:
        values = values[: _MOVES[operator]]
    elif operator in _INDEXES:
        del values[1]
    known = [largest[name] for name in values if name in largest]
    most = max(known, default=math.inf)
    if operator in _MOVES or (operator in _INDEXES and not _accumulates(node)):
        return most
    told = types.get(node.input[0]) if node.input else None
    count = math.prod(d.dim_value or math.inf for d in told.shape.dim) if told else math.inf
    if operator in _SHRINKS:
        made = most
    elif operator in ("Add", "Sub", "Sum"):
        made = sum(known)
    elif operator == "Mul":
        made = math.prod(known)
    elif operator in _SUMS:
        made = largest.get(node.input[0], math.inf) * count
    elif operator in _POSITIONS:
        made = count
    elif operator == "Cast" and not known and told is not None:
        made = _LARGEST.get(told.elem_type, math.inf)
    else:
        made = math.inf
    grows = made > _LIMIT and any(_is_wide(name, types) for name in node.output)
    if known and (most > _LIMIT or grows):
        raise Unsupported(f"OpenVINO computes {operator} of 64-bit integers in 32 bits")
    return made


def _accumulates(node: Any) -> bool:
    """Whether a scatter adds or multiplies values at the same index."""
    return any(a.name == "reduction" and a.s in (b"add", b"mul") for a in node.attribute)


def _of_constant(value: Any) -> float:
    import onnx

    if value.data_type != _INT64:
        return 0.0
    return _magnitude(onnx.numpy_helper.to_array(value))


def _magnitude(value: Any) -> float:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind != "i" or not array.size:
        return 0.0
    return float(max(abs(int(array.min())), abs(int(array.max()))))
