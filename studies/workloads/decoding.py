"""Milliseconds of a prompt and of a token after it, by hand and as ``autocompile tune`` picks.

    python studies/workloads/decoding.py --budget 5m --processes 1

By hand: eager mode, plain ``torch.compile()`` and ``mode="reduce-overhead"``. Each runs in fresh
processes, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from compare import HERE, in_process, machine, pick, record

BY_HAND: dict[str, dict[str, Any]] = {
    "plain": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
}
_WARM, _PASSES = 3, 10


def run_one(name: str, file: str, device: str) -> dict[str, float]:
    """Of the calls of one program: milliseconds of a token, of a prompt, and of a pass."""
    import torch
    from decoder import get_calls, get_model, get_step

    import autocompile

    torch.manual_seed(0)
    model = get_model().to(device)
    calls = [tokens.to(device) for tokens in get_calls()]
    step = get_step(model)
    if file:
        (choice,) = json.loads(Path(file).read_text())["phases"]["inference_step"]
        if choice["config"].get("scope") == "step":
            step = autocompile.apply(step, file, "inference_step")
        else:
            autocompile.apply(model, file, "inference_step")
    elif name in BY_HAND:
        model.compile(**BY_HAND[name])
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def ms(*every: Any) -> float:
        wait()
        began = time.perf_counter()
        for tokens in every:
            step(tokens)
        wait()
        return 1e3 * (time.perf_counter() - began)

    found: dict[str, list[float]] = {"pass_ms": [], "token_ms": [], "prompt_ms": []}
    with torch.no_grad():
        for number in range(_WARM + _PASSES):
            seen = [("pass_ms", ms(*calls))]
            for tokens in calls:
                kind = "prompt_ms" if tokens.shape[1] > 1 else "token_ms"
                seen.append((kind, ms(tokens)))
            for kind, taken in seen if number >= _WARM else ():
                found[kind].append(taken)
    return {kind: round(statistics.median(all_of), 4) for kind, all_of in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--one", help="run one program (for the script itself)")
    parser.add_argument("--file", default="", help="settings that it applies")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--budget", default="5m")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one, options.file, options.device)))
        return
    data: dict[str, Any] = machine(options.device)
    with tempfile.TemporaryDirectory() as folder:
        more = ("--device", options.device, "--budget", options.budget)
        file, data["pick"] = pick(HERE / "decoder.py", Path(folder) / "run", *more)
        data["ms"] = {name: [] for name in ("eager", *BY_HAND, "pick")}
        for _ in range(options.processes):
            for name, rows in data["ms"].items():
                command = [__file__, "--one", name, "--device", options.device]
                command += ["--file", str(file)] if name == "pick" else []
                rows.append(in_process(command))
                print(f"{name:18}", rows[-1], flush=True)
    record(f"decoder, {options.device}", data)


if __name__ == "__main__":
    main()
