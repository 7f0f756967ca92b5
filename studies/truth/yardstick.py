"""How fast is the machine just now? One piece of work, the same each time.

    python studies/truth/yardstick.py 5 cpu        (seconds, device)

Prints JSON: the median and the 5 % quantile, in microseconds. A virtual machine has neighbours that
no counter in it shows.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable

import numpy as np

PAUSE_S = 0.02
BUSY = 1.15  # times its best: calm processes of the truth have 1.00 to 1.12, others 1.22 to 1.72


def is_busy(seen: Iterable[float], device: str) -> bool:
    """Whether others had the machine, by what the yardstick took over its best.

    Beside a GPU nobody has it for as long as a run takes: the one thread that counts there has
    company for seconds, or none. Nothing is called busy.
    """
    return device == "cpu" and any(ratio > BUSY for ratio in seen)


def make_yardstick(device: str) -> Callable[[], float]:
    """Something whose time says how fast the machine is just now, in microseconds.

    On a CPU arithmetic on all cores; beside a GPU, where one thread launches kernels, small calls
    on one.
    """
    import torch

    size, calls = (160, 10) if device == "cpu" else (2, 100)
    left, right = torch.rand(size, size), torch.rand(size, size)

    def some() -> float:
        begin = time.perf_counter_ns()
        for _ in range(calls):
            left @ right
        return (time.perf_counter_ns() - begin) / 1e3 / calls

    return lambda: min(some(), some(), some())


def main() -> None:
    seconds, device = float(sys.argv[1]), sys.argv[2]
    yardstick, found = make_yardstick(device), list[float]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(yardstick())
        time.sleep(PAUSE_S)
    print(json.dumps({"median": np.median(found), "best": np.quantile(found, 0.05)}))


if __name__ == "__main__":
    main()
