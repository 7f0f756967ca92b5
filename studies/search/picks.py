"""Measure what real runs picked, with code that shares nothing with autocompile.

    python studies/search/picks.py

Of each phase and batch size of RLlib's PPO in ``cpu/runs.json``, every setting that some run
picked, plain ``torch.compile()`` and eager mode, in fresh processes: blocks of all of them in
random order. Only backends that autocompile brings are taken from it, by their names. Where weights
are constants, the first call after they have changed is timed too. Written to
``cpu/picks.json``.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
BLOCK_S, ROUNDS, PROCESSES, REFRESHES = 0.03, 40, 5, 5
STEPS_PER_UPDATE = 2000  # of each of two env runners: PPO's training batch is 4000
PLAIN: dict[str, Any] = {"backend": "inductor"}


def sides_of(
    data: dict[str, Any],
) -> dict[tuple[str, int | None], list[dict[str, Any]]]:
    """What is measured at each batch size of each phase, eager first."""
    found: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for run in data["runs"].values():
        for pick in run["picks"]:
            sides = found.setdefault((pick["phase"], pick["batch_size"]), [{}, PLAIN])
            config = short(pick["config"])
            if config not in sides:
                sides.append(config)
    return found


def short(config: dict[str, Any] | None) -> dict[str, Any]:
    """A setting without what is as torch has it; empty for eager mode."""
    usual = {
        "mode": "default",
        "scope": "model",
        "environment": "default",
        "precision": "default",
    }
    usual |= {"memory_format": "default", "optimizer": "default", "autocast": "none"}
    usual |= {"guards": "all", "backend": "eager"}
    return {k: v for k, v in (config or {}).items() if v and v != usual.get(k)}


def make(phase: str, size: int | None, config: dict[str, Any], target: Any) -> Any:
    """The call that is timed, and the parameters behind it."""
    import torch

    torch.manual_seed(0)
    spec = target.config.get_rl_module_spec(inference_only=phase != "optimizer_step")
    net = spec.build()
    arguments = {
        k: v
        for k, v in config.items()
        if k in ("backend", "mode", "options", "dynamic")
    }
    arguments |= {"fullgraph": True} if config.get("fullgraph") else {}
    left = (
        config.keys() - arguments.keys() - {"fullgraph", "memory_format", "optimizer"}
    )
    if left:
        raise SystemExit(f"this script cannot do {sorted(left)} of {config}")
    is_compiled = bool(config.keys() - {"memory_format", "optimizer"})

    def compiled(function: Any) -> Any:
        return torch.compile(function, **arguments) if is_compiled else function

    if phase == "optimizer_step":
        for parameter in net.parameters():
            parameter.grad = 1e-2 * torch.randn_like(parameter)
        ways: dict[str, dict[str, Any]] = {
            "fused": {"fused": True},
            "foreach": {"foreach": True},
            "for_loop": {"foreach": False},
            "tensor_lr": {"lr": torch.tensor(5e-5)},
        }
        given = {"lr": 5e-5} | (
            ways[config["optimizer"]] if "optimizer" in config else {}
        )
        optimizer = torch.optim.Adam(net.parameters(), **given)
        return compiled(lambda: optimizer.step()), net
    if config.get("memory_format"):
        net = net.to(memory_format=torch.channels_last)
    net._forward_exploration = torch.no_grad()(compiled(net._forward_exploration))
    shape = (size, *target.config.observation_space.shape)
    batch = {"obs": torch.empty(shape).uniform_(-1, 1)}
    no_grad = torch.no_grad()

    def call() -> None:
        with no_grad:
            net.forward_exploration(batch)

    return call, net


def seconds(call: Callable[[], Any], calls: int) -> float:
    """Of one call, in a block."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def refresh_s(call: Callable[[], Any], net: Any) -> float:
    """What the first call takes more than another, after weights have changed."""
    import torch

    extra = []
    for _ in range(REFRESHES):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(1e-5)
        first = seconds(call, 1)
        extra.append(first - seconds(call, 3))
    return max(0.0, median(extra))


def one(
    phase: str, size: int | None, sides: list[dict[str, Any]], seed: int
) -> dict[str, Any]:
    """In a process of its own."""
    path = ROOT / "examples/ppo_breakout.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    target = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(target)
    made = [make(phase, size, config, target) for config in sides]
    calls = []
    for call, _ in made:
        seconds(call, 10)
        calls.append(
            max(1, round(BLOCK_S / median(seconds(call, 3) for _ in range(5))))
        )
    order, times = random.Random(seed), [[] for _ in sides]
    gc.collect()
    gc.freeze()
    gc.disable()
    for turn in range(ROUNDS + 5):
        for index in order.sample(range(len(sides)), len(sides)):
            made[index][
                0
            ]()  # after another side's calls: its threads, what it left in the caches
            took_s = seconds(made[index][0], calls[index])
            if turn >= 5:
                times[index].append(float(f"{1e6 * took_s:.4g}"))
    has_constants = [
        config.get("options", {}).get("weights") == "baked" for config in sides
    ]
    refresh = [
        round(1e6 * refresh_s(*side)) if has else 0
        for side, has in zip(made, has_constants, strict=True)
    ]
    return {"us": times, "refresh_us": refresh}


def calls_us(row: dict[str, Any]) -> list[list[float]]:
    """Of each process: microseconds of a call of each side, refreshes counted."""
    share = (row["batch_size"] or 1) / STEPS_PER_UPDATE
    return [
        [
            median(us) + refresh * share
            for us, refresh in zip(p["us"], p["refresh_us"], strict=True)
        ]
        for p in row["processes"]
    ]


def behind(row: dict[str, Any]) -> list[float]:
    """By what fraction each side is slower than the best one, compared inside each process."""
    processes, sides = calls_us(row), range(len(row["sides"]))

    def over(first: int, second: int) -> float:
        return median(us[first] / us[second] for us in processes)

    best = min(sides, key=lambda side: max(over(side, other) for other in sides))
    return [over(side, best) - 1 for side in sides]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--show", action="store_true", help="what is recorded; measure nothing"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        phase, size, sides = json.loads(options.one[0])
        print(json.dumps(one(phase, size, sides, int(options.one[1]))))
        return
    runs = json.loads((HERE / "cpu" / "runs.json").read_text())
    path = HERE / "cpu" / "picks.json"
    rows = json.loads(path.read_text())["rows"] if options.show else []
    for (phase, size), sides in {} if options.show else sides_of(runs).items():
        processes = []
        for number in range(PROCESSES):
            with tempfile.TemporaryDirectory(prefix="picks-") as cache:
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    json.dumps([phase, size, sides]),
                ]
                found = subprocess.run(
                    [*command, str(number)],
                    env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
            processes.append(json.loads(found.stdout.splitlines()[-1]))
        rows.append(
            {"phase": phase, "batch_size": size, "sides": sides, "processes": processes}
        )
        path.write_text(json.dumps({"schema": 1, "rows": rows}) + "\n")
    for row in rows:
        show(row, runs)


def show(row: dict[str, Any], runs: dict[str, Any]) -> None:
    """How fast each side is, how far behind the best, and which runs picked it."""
    cell, found = (row["phase"], row["batch_size"]), calls_us(row)
    for side, (config, lost) in enumerate(zip(row["sides"], behind(row), strict=True)):
        by = [
            f"{name} ({pick['speedup']['value']:.2f})"
            for name, run in runs["runs"].items()
            for pick in run["picks"]
            if (pick["phase"], pick["batch_size"]) == cell
            and short(pick["config"]) == config
        ]
        speedup = median(us[0] / us[side] for us in found)
        print(f"{cell}: {speedup:.3f} (slower by {lost:.1%}) {config} {', '.join(by)}")


if __name__ == "__main__":
    main()
