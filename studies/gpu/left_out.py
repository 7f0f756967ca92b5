"""Does the prior order the settings of a network that it has not seen?

For each network the prior is learned without it; the settings of its reference are tried in the
order of the prior, and the best of the first one to four is compared with the best of all.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "studies/search")]

from learn import learn, rows_of_reference, tables  # noqa: E402

from autocompile.search.effects import Prior  # noqa: E402


def main() -> None:
    print(f"{'behind the best after':22} {'1':>6} {'2':>6} {'3':>6} {'4 tries'}")
    for path in sorted((ROOT / "studies/gpu/h100").glob("*.json")):
        timed = [
            (c, log) for _, _, c, log, _ in rows_of_reference(path) if log is not None
        ]
        kind = rows_of_reference(path)[0][0]
        priors = learn(tables(), without=path.stem)
        prior = Prior(**priors[kind])
        order = sorted(timed, key=lambda row: -prior.mean(row[0]))
        best = max(log for _, log in timed)
        behind = [
            math.expm1(best - max(log for _, log in order[:n])) for n in (1, 2, 3, 4)
        ]
        print(f"{path.stem:22} " + " ".join(f"{100 * b:5.1f}%" for b in behind))


if __name__ == "__main__":
    main()
