"""A training step on a GPU: autocompile and pytorch-autotune 2.0.0, and what their picks bring.

    pip install --no-deps pytorch-autotune==2.0.0
    python studies/peers/training_step.py encoder --budget 120 --to studies/peers/h100/encoder.json

Each tool tunes in a process of its own for as many seconds, with TF32 and bfloat16 allowed to both
(here they are named: ``--precision``, ``--autocast``). Then one process builds both picks from
scratch, beside four baselines, in a loop that shares no code with either, and times them in turns:
60 rounds of at least 0.1 s each. A figure's error is that of the speed-up that a tool reports.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROUNDS, ROUND_S, WARM = 60, 0.1, 15


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--budget", type=int, default=120)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--one", help="part of it (for the script itself)")
    asked = parser.parse_args()
    if asked.one:
        print("\n" + json.dumps(PARTS[asked.one](asked.model, asked.budget, Path.cwd())))
        return
    found: dict[str, Any] = {"model": asked.model, "budget_s": asked.budget}
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            began = time.monotonic()
            command = [sys.executable, __file__, asked.model, "--budget", str(asked.budget)]
            done = subprocess.run(
                [*map(str, command), "--one", part], cwd=folder, stdout=subprocess.PIPE, text=True
            )
            lines = done.stdout.strip().splitlines()
            found[part] = json.loads(lines[-1]) if done.returncode == 0 and lines else None
            found[f"{part}_wall_s"] = round(time.monotonic() - began, 1)
            print(part, found[f"{part}_wall_s"], found[part], flush=True)
    if asked.to:
        asked.to.parent.mkdir(parents=True, exist_ok=True)
        asked.to.write_text(json.dumps(found, indent=1) + "\n")


def target(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / "targets" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def autocompile(name: str, budget_s: int, folder: Path) -> dict[str, Any]:
    from autocompile import tune
    from autocompile.settings.tuned import Tuned, TunedSet
    from autocompile.space.space import SearchSpace

    space = SearchSpace(precision=("default", "high"), autocast=("none", "bfloat16"))
    result = tune(
        HERE / "targets" / f"{name}.py",
        phases=("train_step",),
        space=space,
        budget_s=budget_s,
        run_dir=folder / "run",
        progress="plain",
    )
    report = result.report
    (folder / "tuned.json").write_text(TunedSet((Tuned.from_report(report),)).to_json())
    best = report.phases["train_step"].best
    assert best
    confidence = report.phases["train_step"].confidence
    return {
        "pick": {k: v for k, v in best.config.items() if v},
        "speedup": best.speedup.to_dict(),
        "confidence": confidence.word if confidence else "",
        "trials": [
            [
                t.config["backend"],
                t.config["mode"],
                t.config["autocast"],
                t.config["precision"],
                t.outcome.value,
                t.speedup.value if t.speedup else None,
            ]
            for t in report.phases["train_step"].trials
        ],
    }


def autotune(name: str, budget_s: int, folder: Path) -> dict[str, Any]:
    from pytorch_autotune import autotune as tune

    module = target(name)
    import torch

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
    (folder / "autotune.json").write_text(json.dumps(found.config.to_dict()))
    report = found.report.to_dict()
    return {"pick": found.config.to_dict(), "report": report}


def reference(name: str, budget_s: int, folder: Path) -> dict[str, Any]:
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

    def built(how: str) -> Any:
        set_flags(usual)
        torch._dynamo.reset()
        model = module.get_model()
        model.load_state_dict(state)
        model = model.cuda().train()
        given, dtype, scaler, inputs = model, None, None, x
        if how == "ours":
            import autocompile

            optimizer = module.get_optimizer(model)
            autocompile.apply(model, "tuned.json", "train_step", optimizer=optimizer)
        else:
            config = {"precision": "fp32", "compile": "off"}
            if how == "autotune":
                config = json.loads((folder / "autotune.json").read_text())
            elif how != "fp32":
                config["precision"] = {"tf32": "tf32", "bf16": "amp_bf16"}.get(how, "fp32")
                config["compile"] = "default" if how == "plain" else "off"
            if config["precision"] != "fp32":
                set_flags(("high", True))
            if config.get("channels_last"):
                model, inputs = (v.to(memory_format=torch.channels_last) for v in (model, x))
            dtype = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(config["precision"])
            scaler = torch.amp.GradScaler("cuda") if dtype is torch.float16 else None
            fused = {"fused": True} if config.get("fused_opt") else {}
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **fused)
            mode = config["compile"]
            if mode != "off":
                given = torch.compile(model, mode=None if mode == "default" else mode)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = F.cross_entropy(given(inputs), y)
            if scaler:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            return loss

        first = float(step())
        for _ in range(WARM):
            step()
        return how, step, flags(), first

    sides = [built(how) for how in ("fp32", "tf32", "bf16", "plain", "autotune", "ours")]
    times: dict[str, list[float]] = {how: [] for how, *_ in sides}
    counts = {}
    for how, step, own, _ in sides:
        set_flags(own)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        counts[how] = max(3, int(ROUND_S * 5 / (time.perf_counter() - began)))
    for _ in range(ROUNDS):
        for how, step, own, _ in sides:
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
        "ms": {how: round(statistics.median(values), 4) for how, values in times.items()},
        "first_loss": {how: first for how, _, _, first in sides},
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


PARTS = {"autocompile": autocompile, "autotune": autotune, "reference": reference}

if __name__ == "__main__":
    main()
