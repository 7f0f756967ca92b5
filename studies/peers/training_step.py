"""A training step on a GPU: autocompile and pytorch-autotune 2.0.0, and what their picks bring.

    pip install --no-deps pytorch-autotune==2.0.0
    python studies/peers/training_step.py encoder --budget 80 --to studies/peers/h200/encoder.json

Each run of a tool is a process of its own with empty caches, of as many seconds, with TF32 and
bfloat16 allowed to both (here they are named: ``--precision``, ``--autocast``). Then one process
builds every pick from scratch, beside four baselines, in a loop that shares no code with either,
and times them in turns: 20 rounds of about 0.5 s each (0.1 s in the files of the ResNets). A
figure's error is that of the speed-up that a tool reports. The parts may run on GPUs of one kind
side by side, each with a temporary folder of its own (``TMPDIR``):

    ... encoder --tools autocompile --no-reference --to a.json
    ... encoder --tools autotune --no-reference --to b.json
    ... encoder --runs 0 --of a.json b.json --to encoder.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tools import TARGETS, part, target

ROUNDS, ROUND_S, WARM = 20, 0.5, 15  # shorter ones seem slower: studies/gpu/blocks.py
TF32 = ("high", True)
BASELINES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "amp_bf16"},
    "plain": {"compile": "default"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--tools", default="autocompile,autotune")
    parser.add_argument(
        "--of", type=Path, nargs="*", default=[], help="rows that are there"
    )
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--picks", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        found = {
            "autocompile": lambda: autocompile(asked.model, asked.budget),
            "autotune": lambda: autotune(asked.model, asked.budget),
            "reference": lambda: reference(asked.model, json.loads(asked.picks)),
        }[asked.one]()
        print("\n" + json.dumps(found))
        return
    asked.to.parent.mkdir(parents=True, exist_ok=True)
    common = [asked.model, "--budget", str(asked.budget), "--to", str(asked.to)]

    def run(*words: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="peers-") as cache:
            os.environ.update(
                TORCHINDUCTOR_CACHE_DIR=cache, TRITON_CACHE_DIR=f"{cache}/triton"
            )
            return part(__file__, *common, *words)

    rows = [row for path in asked.of for row in json.loads(path.read_text())["rows"]]
    found = {"model": asked.model, "budget_s": asked.budget, "rows": rows}
    for number in range(asked.runs):
        for tool in asked.tools.split(","):
            rows.append({"tool": tool, "run": number, **run("--one", tool)})
            print(rows[-1], flush=True)
            asked.to.write_text(json.dumps(found, indent=1) + "\n")
    if asked.no_reference:
        return
    picks = {key_of(row): row["pick"] for row in rows if "pick" in row}
    found["reference"] = timed = run("--one", "reference", "--picks", json.dumps(picks))
    print(timed, flush=True)
    for row in rows:
        ms = timed.get("ms", {})
        if "pick" in row and key_of(row) in ms:
            row["true_speedup"] = round(ms["fp32"] / ms[key_of(row)], 4)
            row["error"] = round(abs(row["speedup"] / row["true_speedup"] - 1), 4)
    asked.to.write_text(json.dumps(found, indent=1) + "\n")


def key_of(row: dict[str, Any]) -> str:
    """The name of a pick in the reference."""
    pick = {name: value for name, value in row["pick"].items() if name != "fullgraph"}
    return f"{row['tool']} {json.dumps(pick, sort_keys=True)}"


def autocompile(name: str, budget_s: int) -> dict[str, Any]:
    from autocompile import tune
    from autocompile.settings.searchspace import SearchSpace

    with tempfile.TemporaryDirectory() as folder:
        result = tune(
            TARGETS / f"{name}.py",
            phases=("train_step",),
            space=SearchSpace(
                precision=("default", "high"), autocast=("none", "bfloat16")
            ),
            budget_s=budget_s,
            run_dir=Path(folder) / "run",
            progress="none",
        )
    phase = result.report.phases["train_step"]
    best = phase.answer.best
    assert best
    interval = best.speedup
    return {
        "pick": best.config.to_dict(),
        "speedup": interval.value,
        "low": interval.low,
        "high": interval.high,
        "confidence": phase.answer.confidence,
        "trials": [
            {
                "config": {**plain_of(t.config.to_dict()), **dict(t.config.options)},
                "outcome": t.outcome.value,
                "speedup": t.speedup.value if t.speedup else None,
            }
            for t in phase.trials
        ],
    }


def plain_of(config: dict[str, Any]) -> dict[str, Any]:
    """What of a setting is not as by default."""
    from autocompile.settings.config import CompileConfig

    usual = {**CompileConfig().to_dict(), "backend": ""}
    return {name: value for name, value in config.items() if value != usual.get(name)}


def autotune(name: str, budget_s: int) -> dict[str, Any]:
    import torch
    from pytorch_autotune import autotune as tune

    module = target(name)
    torch.manual_seed(0)
    x = module.get_inputs().cuda()
    found = tune(
        module.get_model(),
        (x, module.labels(x)),
        loss_fn=torch.nn.functional.cross_entropy,
        budget=budget_s,
        cache=False,
        verbose=False,
    )
    report = found.report.to_dict()
    pick = found.config.to_dict()
    of_pick = [
        t["speedup"] for t in report["trials"] if t["config"] == pick and t["speedup"]
    ]
    return {"pick": pick, "speedup": max(of_pick, default=1.0), "report": report}


def reference(name: str, picks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds of a step of each, built from scratch and timed in turns."""
    import torch

    module = target(name)
    torch.manual_seed(0)
    x = module.get_inputs().cuda()
    y = module.labels(x)
    state = module.get_model().state_dict()
    F = torch.nn.functional

    def flags() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    def set_flags(value: tuple[str, bool]) -> None:
        torch.set_float32_matmul_precision(value[0])
        torch.backends.cudnn.allow_tf32 = value[1]

    usual = flags()

    def built(pick: dict[str, Any]) -> Any:
        set_flags(usual)
        model = module.get_model()
        model.load_state_dict(state)
        model = model.cuda().train()
        given, dtype, scaler, inputs, ours = model, None, None, x, None
        if (
            "backend" in pick
        ):  # of autocompile, which changes the model and the optimizer in place
            import autocompile
            from autocompile.settings.config import CompileConfig
            from autocompile.settings.tuned import Choice, Tuned, TunedSet

            choice = Choice(CompileConfig.from_dict(pick, "train_step"))
            ours = Path(tempfile.mkdtemp()) / "tuned.json"
            tuned = Tuned({"train_step": (choice,)}, {}, name)
            ours.write_text(TunedSet((tuned,)).to_json())
            optimizer = module.get_optimizer(model)
            if pick["scope"] != "step":
                autocompile.apply(model, ours, "train_step", optimizer=optimizer)
        else:
            precision, mode = pick.get("precision", "fp32"), pick.get("compile", "off")
            if not precision.startswith("fp32"):
                set_flags(TF32)
            if pick.get("channels_last"):
                model, inputs = (
                    v.to(memory_format=torch.channels_last) for v in (model, x)
                )
            dtype = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(
                precision
            )
            scaler = torch.amp.GradScaler("cuda") if dtype is torch.float16 else None
            fused = {"fused": True} if pick.get("fused_opt") else {}
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **fused)
            if mode != "off":
                given = torch.compile(model, mode=None if mode == "default" else mode)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype) if dtype else contextlib.nullcontext():
                loss = F.cross_entropy(given(inputs), y)
            if scaler:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            return loss

        if ours and pick["scope"] == "step":
            step = autocompile.apply(step, ours, "train_step", optimizer=optimizer)
        return step, flags(), float(step())

    torch._dynamo.config.recompile_limit = 1000  # they share the code of one class
    sides = {how: built(pick) for how, pick in (BASELINES | picks).items()}
    times: dict[str, list[float]] = {how: [] for how in sides}
    counts = {}
    for how, (step, own, _) in sides.items():
        set_flags(own)
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        counts[how] = max(10, int(ROUND_S * 5 / (time.perf_counter() - began)))
    for _ in range(ROUNDS):
        for how, (step, own, _) in sides.items():
            set_flags(own)
            for _ in range(2):
                step()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(counts[how]):
                step()
            torch.cuda.synchronize()
            times[how].append((time.perf_counter() - began) / counts[how] * 1e3)
    return {
        "ms": {
            how: round(statistics.median(values), 4) for how, values in times.items()
        },
        "steps_of_a_round": counts,
        "first_loss": {how: first for how, (*_, first) in sides.items()},
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
