"""How many times the parameters of a model does a trial hold at its peak?

    python studies/verification/memory.py --to studies/verification/cpu.json

Each case is one trial as the search or a race asks a child for it, of an MLP whose activations are
small. All blocks of at least half a weight are counted that the process holds at once
(``tests/blocks.py``): tensors, and what compiled code allocates; no imports, and no processes of
compilers. Counted of them is what has the size of a weight: the rest are pieces in float64, of at
most 8 MiB each. The figures are written to ``memory`` of the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).resolve().parent)]
import blocks  # noqa: E402
from verification import write  # noqa: E402

WIDTH, LAYERS = 520, 16
NET = f"""
import torch

def get_model():
    layers = [torch.nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})]
    return torch.nn.Sequential(*layers)

def get_inputs():
    return torch.randn(4, {WIDTH})

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

CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "forward": ("forward", [PLAIN]),
    "forward_race": ("forward", RACE),
    "step_adam": ("train_step", [PLAIN]),
    "step_race": ("train_step", RACE),
    "optimizer_step": ("optimizer_step", [PLAIN]),
    "own_step": ("step", [PLAIN]),
}


def measured(phase: str, sides: list[dict[str, Any]]) -> float:
    """How many times the parameters a child holds that runs this trial."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "net.py").write_text(NET + (OWN_STEP if phase == "step" else ""))
        request = {
            "kind": "trial",
            "number": 0,
            "target": str(folder / "net.py"),
            "device": "cpu",
            "seed": 0,
            "phase": phase,
            "sides": [
                {"config": side, "repeats": n if len(sides) > 1 else None}
                for n, side in enumerate(sides)
            ],
            "limits": {"max_s": 0.2, "front_s": 0.2, "rounds": 3, "most": 4},
        }
        (folder / "request.json").write_text(json.dumps(request))
        environment = blocks.preload(folder, WIDTH**2 * 2)
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, __file__, "--child", made]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        result = json.loads(lines[-1]) if lines else {}
        outcomes = {side["outcome"] for side in result.get("sides", [])}
        if outcomes != {"ok"}:
            raise SystemExit(f"{phase}: {result or done.stderr[-3000:]}")
        held = int((folder / "held").read_text())
    return round(held / (LAYERS * WIDTH**2 * 4), 2)


def child(folder: Path) -> None:
    """Run the trial of a folder, and write what of the size of a weight it held at its peak."""
    counted = blocks.Blocks(lambda size: 0)
    from autocompile.trial import worker

    worker.run(str(folder))
    weight = WIDTH**2 * 4
    held = sum(size for size, _ in counted.at_peak() if size == weight)
    (folder / "held").write_text(str(held))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, help="the JSON")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)
    found = {}
    for name, case in CASES.items():
        found[name] = measured(*case)
        print(name, found[name], flush=True)
    if options.to:
        data = json.loads(options.to.read_text()) if options.to.exists() else {}
        write(options.to, {**data, "memory": found})


if __name__ == "__main__":
    main()
