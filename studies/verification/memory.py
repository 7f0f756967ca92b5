"""How many times the parameters of a model does a trial hold at its peak?

    python studies/verification/memory.py --to FILE.json [--only step_adam,...] [--device cuda]
    python studies/verification/memory.py --table studies/verification/memory.json

Each case is one trial as the search or a race asks a child for it, of an MLP whose activations are
small. On a CPU all blocks of at least half a weight are counted that the process holds at once
(``tests/blocks.py``): tensors, and what compiled code allocates; no imports, and no processes of
compilers. ``bytes`` is all of that over the bytes of the parameters, and ``weights`` of it what has
the size of a weight: the rest are pieces in float64, of at most 8 MiB each. On a GPU ``bytes`` is
what torch has allocated there. ``where`` says, for the peak, how many times the parameters each
place in the code had allocated, the most first.
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
    extra = [torch.nn.Dropout(0.1)] if {dropout} else []
    return torch.nn.Sequential(*layers, *extra)

def get_inputs():
    return torch.randn(4, {width})

def get_optimizer(model):
    return torch.optim.{optimizer}
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
OWN_CALLS = """
def get_step(model):
    return lambda x: model(x).relu()
"""
ADAM = "Adam(model.parameters())"
FOREACH, FUSED = (f"AdamW(model.parameters(), {n}=True)" for n in ("foreach", "fused"))
PLAIN: dict[str, Any] = {"backend": "inductor"}
LOW = {"autocast": "bfloat16"}
RACE = [PLAIN, {"backend": "aot_eager"}, {**PLAIN, "dynamic": True}]

CASES: dict[str, dict[str, Any]] = {
    "aot_forward": {"phase": "forward", "sides": [{"backend": "aot_eager"}]},
    "aot_step": {"phase": "train_step", "sides": [{"backend": "aot_eager"}]},
    "forward": {"phase": "forward"},
    "forward_autocast": {"phase": "forward", "sides": [{**PLAIN, **LOW}]},
    "forward_race": {"phase": "forward", "sides": RACE},
    "step_adam": {"phase": "train_step"},
    "step_foreach": {"phase": "train_step", "optimizer": FOREACH},
    "step_fused": {"phase": "train_step", "optimizer": FUSED},
    "step_whole": {"phase": "train_step", "sides": [{**PLAIN, "scope": "step"}]},
    "step_dropout": {"phase": "train_step", "dropout": True},
    "step_autocast": {"phase": "train_step", "sides": [{**PLAIN, **LOW}]},
    "step_race": {"phase": "train_step", "sides": RACE},
    "optimizer_step": {"phase": "optimizer_step"},
    "own_step": {"phase": "step", "code": OWN_STEP},
    "inference_step": {"phase": "inference_step", "code": OWN_CALLS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--package", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--table", type=Path, nargs="*")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.device, 4 * args.width**2)
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
        source = NET.format(
            width=args.width,
            layers=args.layers,
            dropout=case.get("dropout", False),
            optimizer=case.get("optimizer", ADAM),
        )
        (folder / "net.py").write_text(source + case.get("code", ""))
        request = {
            "kind": "trial",
            "number": 0,
            "target": str(folder / "net.py"),
            "device": args.device,
            "seed": 0,
            "phase": case["phase"],
            "sides": [
                {"config": side, "repeats": n if len(sides) > 1 else None}
                for n, side in enumerate(sides)
            ],
            "limits": {"max_s": 0.2, "front_s": 0.2, "rounds": 3, "most": 4},
        }
        (folder / "request.json").write_text(json.dumps(request))
        command = [sys.executable, __file__, "--child", made, "--device", args.device]
        command += ["--width", str(args.width)]
        least = args.width**2 * 2
        environment = (
            blocks.preload(folder, least) if args.device == "cpu" else {**os.environ}
        )
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        environment["PYTHONPATH"] = str(args.package)
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


def child(folder: Path, device: str, weight: int) -> None:
    """Run the trial of a folder, and write what it held at its peak."""
    places = ["?"]

    def number_by(size: int) -> int:
        place = _place()
        if place not in places:
            places.append(place)
        return places.index(place)

    counted = blocks.Blocks(number_by) if device == "cpu" else None
    from autocompile.trial import worker

    worker.run(str(folder))
    if counted is None:
        import torch

        found: dict[str, Any] = {"bytes": torch.cuda.max_memory_allocated()}
    else:
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


def table(paths: list[Path]) -> str:
    """The copies of each case, a column for each file."""
    files = {path.stem: json.loads(path.read_text()) for path in paths}
    lines = [f"| trial | {' | '.join(files)} |", "| --- |" + " ---: |" * len(files)]
    for name in CASES:
        found = [
            row.get("weights", row.get("bytes", ""))
            for row in (rows.get(name, {}) for rows in files.values())
        ]
        lines.append(f"| {name} | {' | '.join(map(str, found))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
