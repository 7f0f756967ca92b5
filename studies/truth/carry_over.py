"""What eager mode leaves behind for the calls of another runtime that follow it, and the other way.

    python studies/truth/carry_over.py      # a minute on two cores; writes cpu/carry_over.json

RLlib's network for Atari frames at batch 1, in eager mode by turns with each of three others:
30 calls of the one, then 30 of the other, each timed by itself; and with OpenVINO after a pause of
10 ms, in which threads that spin fall asleep.
"""

from __future__ import annotations

import json
import runpy
import time
from pathlib import Path
from statistics import median

import torch

HERE = Path(__file__).parent
CALLS, TURNS = 30, 60
WAYS = {
    "openvino_onnx baked": (
        {"backend": "openvino_onnx", "options": {"weights": "baked"}},
        0.0,
    ),
    "openvino_onnx baked, after 10 ms": (
        {"backend": "openvino_onnx", "options": {"weights": "baked"}},
        0.01,
    ),
    "onnxrt baked": ({"backend": "onnxrt", "options": {"weights": "baked"}}, 0.0),
    "inductor": ({}, 0.0),
}


def main() -> None:
    target = runpy.run_path(str(HERE.parent / "tuning_cost" / "ppo_cnn.py"))
    torch.manual_seed(0)
    model, inputs = target["get_model"]().eval(), target["get_inputs"](1)
    found = {}
    with torch.no_grad():
        for name, (settings, pause_s) in WAYS.items():
            torch.compiler.reset()
            sides = {"eager": model, name: torch.compile(model, **settings)}
            for side in list(sides.values()) * 20:
                side(*inputs)
            times = {side: [] for side in sides}
            for _ in range(TURNS):
                for side, call in sides.items():
                    time.sleep(pause_s)
                    row = []
                    for _ in range(CALLS):
                        began = time.perf_counter()
                        call(*inputs)
                        row.append(time.perf_counter() - began)
                    times[side].append(row)
            found[name] = {
                "other" if side != "eager" else side: [
                    round(median(at) * 1e6, 1) for at in zip(*rows, strict=True)
                ]
                for side, rows in times.items()
            }
            calls = found[name]["other"]
            print(
                f"{name}: first {calls[0]:.0f} µs, last ten {median(calls[-10:]):.0f} µs"
            )
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    path = HERE / "cpu" / "carry_over.json"
    path.write_text(
        json.dumps({"schema": 1, **facts, "call_us": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
