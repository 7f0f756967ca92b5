"""PPO on Breakout with its exploration compiled or not, in per cent, by backend and mode.

    pip install ale-py opencv-python-headless
    python studies/seeds/ppo_breakout.py --to studies/seeds/cpu/ppo_breakout.json
    python studies/seeds/ppo_breakout.py --target breakout_remote ... (the env runner has a GPU)

Each setting has a process with two algorithms in it, one that uses it and one that does not, which
do iterations in turns (``autocompile verify --in-algorithm``). Env steps per second of sampling,
and of ``train()``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from autocompile.errors import AutocompileError
from autocompile.report.text import label
from autocompile.request import Request
from autocompile.rllib.gain import compare_in_algorithm
from autocompile.settings.config import CompileConfig
from autocompile.settings.phases import FORWARD_EXPLORATION
from autocompile.settings.tuned import Choice, Tuned, TunedSet

RLLIB = Path(__file__).parents[1] / "rllib"
ENVS = 16
SETTINGS = [
    *(
        CompileConfig(backend=name)
        for name in ("openvino_onnx", "onnxrt", "cudagraphs")
    ),
    *(
        CompileConfig(mode=mode)
        for mode in ("default", "reduce-overhead", "max-autotune", "lite")
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="breakout")
    parser.add_argument(
        "--budget", type=float, default=90.0, help="seconds of each setting"
    )
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    target = str(RLLIB / f"{asked.target}.py")
    rows: list[dict[str, Any]] = []
    for config in SETTINGS:
        choice = Choice(config, ENVS)
        settings = TunedSet((Tuned({FORWARD_EXPLORATION: (choice,)}, {}, target),))
        row: dict[str, Any] = {"setting": label(config), "config": config.to_dict()}
        try:
            row |= compare_in_algorithm(
                Request.of(target, {"budget_s": asked.budget, "timeout_s": 120.0}),
                settings,
            )
            row["target"] = asked.target
        except AutocompileError as error:
            row["error"] = error.what
        rows.append(row)
        asked.to.write_text(json.dumps(rows, indent=1) + "\n")
        print(line(row), flush=True)


def line(row: dict[str, Any]) -> str:
    """A line of the table."""
    if "error" in row:
        return f"| {row['setting']} | – | – | {row['error'][:200]} |"
    gains = [row["figures"][name]["gain"] for name in ("sampled_per_s", "steps_per_s")]
    percent = [
        {end: f"{100 * (value - 1):+.0f}" for end, value in gain.items()}
        for gain in gains
    ]
    cells = [f"{p['value']} [{p['low']}, {p['high']}]" for p in percent]
    return (
        f"| {row['setting']} | {' | '.join(cells)} | {len(row['rounds'])} iterations |"
    )


if __name__ == "__main__":
    main()
