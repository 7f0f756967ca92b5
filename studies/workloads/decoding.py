"""Milliseconds of a prompt and of a token after it, by hand and as ``autocompile tune`` picks.

By hand: eager mode, plain ``torch.compile()``, ``mode="reduce-overhead"`` for all calls, and for
the tokens only, with prompts in eager mode. Each runs in fresh processes, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BY_HAND = ("eager", "plain", "dynamic=True", "reduce-overhead", "tokens only")
_WARM, _PASSES = 3, 10


def run_one(name: str, file: str) -> dict[str, float]:
    """Of the calls of one program: milliseconds of a token and of the prompts, and of a pass."""
    import torch

    sys.path.insert(0, str(HERE))
    from decoder import get_calls, get_model, get_step

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = get_model().to(device)
    calls = [tokens.to(device) for tokens in get_calls()]
    step = get_step(model)
    if file:
        import autocompile

        scope = json.loads(Path(file).read_text())["phases"]["inference_step"][0][
            "config"
        ]
        if scope.get("scope") == "step":
            step = autocompile.apply(step, file, "inference_step")
        else:
            autocompile.apply(model, file, "inference_step")
    elif name == "tokens only":
        whole, fast = (
            model.forward,
            torch.compile(model.forward, mode="reduce-overhead"),
        )
        model.forward = lambda input_ids, **more: (
            whole(input_ids=input_ids, **more)
            if input_ids.shape[1] > 1
            else fast(input_ids=input_ids, **more)
        )
    elif name != "eager":
        more: dict[str, dict[str, Any]] = {
            "dynamic=True": {"dynamic": True},
            "reduce-overhead": {"mode": "reduce-overhead"},
        }
        model.compile(**more.get(name, {}))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    passes, began = [], time.perf_counter()
    with torch.no_grad():
        for number in range(_WARM + _PASSES):
            seconds = []
            wait()
            start = time.perf_counter()
            for tokens in calls:
                step(tokens)
            wait()
            whole_s = time.perf_counter() - start
            for tokens in calls:
                start = time.perf_counter()
                step(tokens)
                wait()
                seconds.append((tokens.shape[1] > 1, time.perf_counter() - start))
            if number == 0:
                first_s = time.perf_counter() - began
            if number >= _WARM:
                passes.append((whole_s, seconds))
    every = [one for _, seconds in passes for one in seconds]
    return {
        "first_s": first_s,
        "pass_ms": 1e3 * statistics.median(s for s, _ in passes),
        "token_ms": 1e3
        * statistics.median(s for is_prompt, s in every if not is_prompt),
        "prompt_ms": 1e3 * statistics.median(s for is_prompt, s in every if is_prompt),
    }


def in_process(name: str, file: str = "") -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "--file", file],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="run one program (for the script itself)")
    parser.add_argument("--file", default="", help="settings that it applies")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--to", type=Path, default=HERE / "decoding_cuda.json")
    parser.add_argument("--by-hand", default=",".join(BY_HAND), help="which of them")
    parser.add_argument("--keep", type=Path, help="folder for the run of the tune")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_one(options.one, options.file)))
        return
    import torch

    name = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.machine()
    )
    data: dict[str, Any] = {"machine": name, "torch": torch.__version__, "calls": {}}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "run"
        tune = [sys.executable, "-m", "autocompile", "tune", str(HERE / "decoder.py")]
        began = time.monotonic()
        subprocess.run(
            [
                *tune,
                "--run-dir",
                str(folder),
                "--budget",
                options.budget,
                "--progress",
                "plain",
            ],
            stdin=subprocess.DEVNULL,
        )
        data["tune_s"] = round(time.monotonic() - began, 1)
        phase = json.loads((folder / "report.json").read_text())["phases"][
            "inference_step"
        ]
        answer = phase["answer"]
        data["pick"] = {k: answer["best"][k] for k in ("config", "speedup")}
        data["pick"]["confidence"] = answer["confidence"]
        file = Path(temporary) / "tuned.json"
        export = [
            sys.executable,
            "-m",
            "autocompile",
            "export",
            str(folder),
            "-o",
            str(file),
        ]
        subprocess.run(export, check=True)
        for number in range(options.processes):
            for name in (*options.by_hand.split(","), "pick"):
                try:
                    found = in_process(name, str(file) if name == "pick" else "")
                except RuntimeError as error:
                    print(name, error, flush=True)
                    continue
                data["calls"].setdefault(name, []).append(found)
                print(
                    number,
                    f"{name:18}",
                    {k: round(v, 3) for k, v in found.items()},
                    flush=True,
                )
    options.to.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
