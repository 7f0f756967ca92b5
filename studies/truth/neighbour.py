"""A noisy neighbour: burns one core in bursts, on and off for 0.3 s on average.

python studies/truth/neighbour.py 1        (a seed; ends with its parent)
"""

from __future__ import annotations

import os
import random
import sys
import time

MEAN_S = 0.3


def main() -> None:
    lengths = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    parent = os.getppid()
    while os.getppid() == parent:
        end = time.monotonic() + lengths.expovariate(1 / MEAN_S)
        while time.monotonic() < end:
            sum(range(1000))
        time.sleep(lengths.expovariate(1 / MEAN_S))


if __name__ == "__main__":
    main()
