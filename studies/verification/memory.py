"""How many times the parameters of a model does a trial hold at its peak?

    python studies/verification/memory.py --to FILE.json [--only step_adam,...]
    python studies/verification/memory.py --table studies/verification/memory.json

Each case is one trial as the search or a race asks a child for it, of an MLP whose activations are
small. All blocks of at least half a weight are counted that the process holds at once
(``tests/blocks.py``): tensors, and what compiled code allocates; no imports, and no processes of
compilers. ``bytes`` is all of that over the bytes of the parameters, and ``weights`` of it what has
the size of a weight: the rest are pieces in float64, of at most 8 MiB each. ``where`` says, for the
peak, how many times the parameters each place in the code had allocated, the most first.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import blocks  # noqa: E402

NET = """
import torch

def get_model():
    layers = [torch.nn.Linear({width}, {width}, bias=False) for _ in range({layers})]
    return torch.nn.Sequential(*layers)

def get_inputs():
    return torch.randn(4, {width})

def get_optimizer(model):
    return torch.optim.Adam(model.parameters())
"""
OWN_STEP = """
def get_step(model, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step
"""
PLAIN: dict[str, Any] = {"backend": "inductor"}
RACE = [PLAIN, {"backend": "aot_eager"}, {**PLAIN, "dynamic": True}]

CASES: dict[str, dict[str, Any]] = {
    "forward": {"phase": "forward"},
    "forward_race": {"phase": "forward", "sides": RACE},
    "step_adam": {"phase": "train_step"},
    "step_race": {"phase": "train_step", "sides": RACE},
    "optimizer_step": {"phase": "optimizer_step"},
    "own_step": {"phase": "step", "code": OWN_STEP},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, 4 * args.width**2)
    if args.table:
        return print(table(args.table))
    rows = json.loads(args.to.read_text()) if args.to.exists() else {}
    for name in args.only.split(","):
        rows[name] = measured(name, args)
        print(name, json.dumps(rows[name], indent=1), flush=True)
        args.to.write_text(json.dumps(rows, indent=1) + "\n")


def measured(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What a child says that runs the trial of a case."""
    case = CASES[name]
    sides = case.get("sides", [PLAIN])
    parameters = args.layers * args.width**2 * 4
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        source = NET.format(width=args.width, layers=args.layers)
        (folder / "net.py").write_text(source + case.get("code", ""))
        request = {
            "kind": "trial",
            "number": 0,
            "target": str(folder / "net.py"),
            "device": "cpu",
            "seed": 0,
            "phase": case["phase"],
            "sides": [
                {"config": side, "repeats": n if len(sides) > 1 else None}
                for n, side in enumerate(sides)
            ],
            "limits": {"max_s": 0.2, "front_s": 0.2, "rounds": 3, "most": 4},
        }
        (folder / "request.json").write_text(json.dumps(request))
        command = [sys.executable, __file__, "--child", made]
        command += ["--width", str(args.width)]
        least = args.width**2 * 2
        environment = blocks.preload(folder, least)
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        environment["PYTHONPATH"] = str(ROOT)
        with (folder / "out.txt").open("w") as out:
            subprocess.run(command, env=environment, stdout=out, stderr=out)
        text = (folder / "out.txt").read_text()
        if not (folder / "found.json").exists():
            raise SystemExit(text)
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    lines = [line for line in text.splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else {"log": text[-3000:]}
    if "where" in found:
        found["where"] = {
            k: round(v / parameters, 2) for k, v in found["where"].items()
        }
    outcomes = [side["outcome"] for side in result.get("sides", [])]
    copies = {
        name: round(found.pop(name) / parameters, 2)
        for name in ("weights", "bytes")
        if name in found
    }
    if "ok" not in outcomes:
        found["said"] = result
    return {**copies, "outcomes": outcomes, "parameter_bytes": parameters, **found}


def child(folder: Path, weight: int) -> None:
    """Run the trial of a folder, and write what it held at its peak."""
    places = ["?"]

    def number_by(size: int) -> int:
        place = _place()
        if place not in places:
            places.append(place)
        return places.index(place)

    counted = blocks.Blocks(number_by)
    from autocompile.trial import worker

    worker.run(str(folder))
    peak = counted.at_peak()
    where: collections.Counter[str] = collections.Counter()
    for size, number in peak:
        where[places[number]] += size
    found = {
        "weights": sum(size for size, _ in peak if size == weight),
        "bytes": sum(size for size, _ in peak),
        "last": places[peak[-1][1]],
        "where": dict(where.most_common()),
    }
    (folder / "found.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def _place() -> str:
    """The innermost functions of the package that ask for memory now."""
    frame: Any = sys._getframe(2)
    names: list[str] = []
    inner = frame.f_code.co_name
    while frame and len(names) < 6:
        code = frame.f_code
        if "/autocompile/" in code.co_filename:
            names.append(
                f"{Path(code.co_filename).stem}.{code.co_name}:{frame.f_lineno}"
            )
        frame = frame.f_back
    return f"{inner} < {' < '.join(names)}"


def table(path: Path) -> str:
    """The copies of each case."""
    rows = json.loads(path.read_text())
    lines = [f"| {name} | {row['weights']} |" for name, row in rows.items()]
    return "\n".join(["| trial | copies |", "| --- | ---: |", *lines])


if __name__ == "__main__":
    main()
