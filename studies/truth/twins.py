"""The network of examples/cnn.py with two backends of its own: ``same``, and ``slower`` by 2 %.

Both run the graph as it is; the slower one then waits for a share of the time that it took. For
aa.py.
"""

import runpy
import time
from pathlib import Path

import torch

SLOWER = 0.02

_cnn = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "cnn.py"))
get_model, get_inputs = _cnn["get_model"], _cnn["get_inputs"]


@torch._dynamo.register_backend
def same(graph, inputs):
    return graph.forward


@torch._dynamo.register_backend
def slower(graph, inputs):
    clock, forward = time.perf_counter_ns, graph.forward

    def slow(*args):
        begin = clock()
        output = forward(*args)
        now = clock()
        end = now + SLOWER * (now - begin)
        while clock() < end:
            pass
        return output

    return slow
