"""What the pages of search, dimensions, verification, exports and workloads say is recorded."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from statistics import mean, median
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

STUDIES = ROOT / "studies"
Load = Callable[[str, str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a script of a study; scripts of others may have the same name."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # scripts add to it
    before = set(sys.modules)

    def load(study: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(STUDIES / study))
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if str(STUDIES) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def page(path: str) -> str:
    return (STUDIES / path).read_text("utf-8")


def words(path: str) -> str:
    """A page in one line."""
    return " ".join(page(path).split())


def recorded(path: str) -> Any:
    return json.loads((STUDIES / path).read_text("utf-8"))


def times(row: dict[str, Any]) -> str:
    return f"{math.exp(row['log_speedup']):.2f}"


def test_the_prior_is_what_the_tables_give(script: Load) -> None:
    learn = script("search", "learn")
    made = json.loads((ROOT / "autocompile/search/prior.json").read_text("utf-8"))
    rows = learn.recorded()
    assert made["priors"] == learn.learn(rows)
    models = {(row.kind.partition("/")[0], row.model, row.cell) for row in rows}
    assert len(models) >= 41  # some have several batch sizes


def test_how_soon_the_search_finds_the_best(script: Load) -> None:
    replay, said = script("search", "replay"), page("search/README.md")
    record = recorded("search/replay.json")
    found = replay.summary(record["models"])
    assert f"a CPU, {len(record['models'])} models, {record['seeds']} seeds" in said
    for strategy, label in (
        ("portfolio", "autocompile's sampler"),
        ("tpe", "Optuna's TPE"),
        ("random", "random"),
        ("list", "the order of the list"),
    ):
        of = found[strategy]
        lost = [f"{of[t]['median']}, {of[t]['p95']} %" for t in ("60", "120", "300")]
        within = f"{of['within_2_percent_s']:.0f} s"
        assert f"| {label} | {' | '.join(lost)} | {within} |" in said
    ours, theirs = found["portfolio"]["120"], found["tpe"]["120"]
    start = words("search/README.md")
    assert f"the answer is {ours['median']} % behind the best" in start
    assert f"and {ours['p95']} % behind at the 95th percentile" in start
    assert f"TPE: {theirs['median']} and {theirs['p95']} %" in start
    assert f"called sure {ours['sure_and_right']:.0f} % are within 2 %" in start


def test_what_is_best_in_each_table() -> None:
    said = page("search/README.md")
    slower = 0
    for device in ("cpu", "cuda"):
        for model, table in recorded(f"search/{device}.json")["tables"].items():
            works = [row for row in table["rows"] if row["outcome"] == "ok"]
            best = max(works, key=lambda row: row["log_speedup"])
            (plain,) = (r for r in works if r["config"] in ({}, {"scope": "step"}))
            assert best is not plain
            slower += device == "cpu" and plain["log_speedup"] < 0
            figures = rf"\| {times(best)} \| \|? ?{times(plain)} \|"
            assert re.search(rf"(?<![a-z_]){model}\b[^|\n]*\|[^|\n]*{figures}", said)
    assert slower == 2  # docs/troubleshooting.md


def test_how_long_compiling_takes_by_operators(script: Load) -> None:
    rows = recorded("search/operators.json")
    apart = max(script("search", "operators").factor(row) for row in rows)
    assert len(rows) == 10 and apart <= 2.4
    assert "within a factor of 2.4 for ten models" in words("search/README.md")


DIMENSIONS = {
    "Inductor": ("inductor",),
    "CUDA graphs with Inductor": ("inductor triton.cudagraphs=True",),
    "CUDA graphs of eager's kernels": ("cudagraphs",),
    "`onnxrt`; with constant weights also": ("onnxrt", "onnxrt weights=baked"),
    "`openvino_onnx`; with constant weights also": (
        "openvino_onnx",
        "openvino_onnx weights=baked",
    ),
    "frozen weights": ("freezing=True",),
    "channels last, compiled; eager": (
        "memory_format=channels_last compiled",
        "memory_format=channels_last eager",
    ),
    "C++ wrapper": ("inductor cpp_wrapper=True",),
    "`max_autotune`": ("inductor max_autotune=True",),
    "autotuned pointwise kernels": ("inductor max_autotune_pointwise=True",),
    "coordinate descent": ("inductor coordinate_descent_tuning=True",),
    "dynamic shapes": ("dynamic=True",),
    "blocks one by one; the step as a whole": ("scope=regional", "scope=step"),
    "fused optimizer, eager; compiled": (
        "optimizer=fused eager",
        "optimizer=fused compiled",
    ),
    "one thread, eager; compiled": ("threads=1 eager", "threads=1 compiled"),
    "TF32, eager; compiled": ("precision=high eager", "precision=high compiled"),
    "bfloat16 by autocast, eager; compiled": (
        "autocast=bfloat16 eager",
        "autocast=bfloat16 compiled",
    ),
}


def test_what_each_dimension_brings() -> None:
    prior = json.loads((ROOT / "autocompile/search/prior.json").read_text("utf-8"))
    kinds = [
        "/".join((device, kind))
        for device in ("cpu", "cuda")
        for kind in ("forward/conv", "forward/other", "optimizer_step", "train_step")
    ]
    lines = [s for s in page("dimensions/README.md").splitlines() if s[:1] == "|"]
    shown = {}
    for line in lines[2:]:
        label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        shown[label] = cells
    assert shown.keys() == DIMENSIONS.keys()
    for label, names in DIMENSIONS.items():
        assert len(shown[label]) == len(kinds)
        for kind, cell in zip(kinds, shown[label], strict=True):
            effects = prior["priors"][kind]["effects"]
            known = [f"{math.exp(effects[n]):.2f}" for n in names if n in effects]
            assert cell in ("", "; ".join(known)), (label, kind)


def test_what_fullgraph_costs() -> None:
    said = words("dimensions/README.md")
    us = {
        (device, row["target"], row["pair"]): (
            f"{row['call_us']:.0f}",
            f"{row['call_us_without']:.0f}",
        )
        for device in ("cpu", "cuda")
        for row in recorded(f"dimensions/{device}.json")["fullgraph"]
    }
    one, graphs = "fullgraph", "fullgraph, reduce-overhead"
    assert "layer on a CPU {} in place of {}".format(*us["cpu", "tiny", one]) in said
    assert "`reduce-overhead` {} in place of {}".format(*us["cpu", "tiny", graphs]) in (
        said
    )
    small = (*us["cuda", "mlp", one], *us["cuda", "mlp", graphs])
    assert "host {} in place of {}, and {} in place of {}".format(*small) in said


def test_which_errors_are_found(script: Load) -> None:
    study, said = (
        script("verification", "verification"),
        words("verification/README.md"),
    )
    gpu, cpu = recorded("verification/h200.json"), recorded("verification/cpu.json")
    on_gpu, on_cpu = study.answer(gpu), study.answer(cpu)
    assert on_gpu["refused"] == on_cpu["refused"] == 0
    assert f"Of {on_gpu['told']} wrong programs {on_gpu['found']} are found" in said
    assert f"and of {on_gpu['judged']} right settings" in said
    assert f"CPU cores {on_cpu['found']} of {on_cpu['told']}, and 0 of " in said
    assert f"and 0 of {on_cpu['judged']})" in said
    ended = on_gpu["without a judgement"]
    assert f"Of the right settings {ended} ended without a judgement" in said
    sizes = study.sizes(gpu)
    parts = {
        "all outputs": ("all outputs too large",),
        "one row of 2,300": ("one row of 2,300 too large",),
        "all gradients; that of one parameter": (
            "all gradients too large",
            "one parameter's gradient too large",
        ),
        "one row of an embedding's gradient": (
            "one row of an embedding's gradient too large",
        ),
    }
    for label, texts in parts.items():
        cells = [
            "; ".join(sizes[text][precision] for text in texts)
            for precision in ("float32", "TF32", "bfloat16", "autocast")
        ]
        assert f"| {label} | {' | '.join(cells)} |" in said


def test_which_lies_pass(script: Load) -> None:
    """Those that the first table names; all others are found in every precision."""
    study = script("verification", "verification")
    passed: dict[str, set[str]] = {}
    for (_, lie), of in study.by_lie(recorded("verification/h200.json")).items():
        named = any(lie in each.lies for each in study.catalogue.LIARS.values())
        for precision, outcome in of.items() if named else ():
            if outcome == "ok":
                passed.setdefault(lie, set()).add(precision)
    low = {"bfloat16"}
    assert passed == {
        "stride": {"float32", "TF32", "bfloat16", "autocast"},
        "gradient_1.01": {"bfloat16", "autocast"},
        **dict.fromkeys(("rate_1.02", "decay_dropped", "decay_doubled"), low),
    }


def test_what_the_limits_of_gradients_were_made_from() -> None:
    data, said = recorded("verification/h200.json"), words("verification/README.md")
    whole = max(row["whole"] for row in data["multiples"])
    part = max(row["slice"] for row in data["multiples"])
    assert f"up to {whole:.1f} times as a whole and {part:.1f} in a slice" in said
    judged = [
        row["outcome"]
        for row in data["h100_by_a_tighter_limit"]
        if row["outcome"] in ("ok", "wrong_output")
    ]
    refused = judged.count("wrong_output")
    assert f"{refused} of {len(judged)} right training steps were refused" in said
    apart = max(max(calls) for calls in data["by_itself"]["3 at once"])
    assert f"up to {apart} of themselves apart" in said


def test_what_a_trial_holds() -> None:
    memory, said = (
        recorded("verification/cpu.json")["memory"],
        words("verification/README.md"),
    )
    for text, case in (
        ("a forward pass {}, a race", "forward"),
        ("a race of forward passes {},", "forward_race"),
        ("a training step with Adam {},", "step_adam"),
        ("a race of them {},", "step_race"),
        ("an optimizer step alone {},", "optimizer_step"),
        ("a step of one's own {}.", "own_step"),
    ):
        assert text.format(f"{memory[case]:.1f}") in said


def test_what_is_exported_takes_effect() -> None:
    data, said = recorded("exports/exports.json"), page("exports/README.md")
    for row in data["rows"]:
        cells = [row["to"]]
        for phase in ("forward", "optimizer_step"):
            found, confirmed = row[phase], data["confirmed"][row["target"]].get(phase)
            assert found["same"]
            text = f"{found['own_ms']:.3g} ms, {found['speedup'][0]:.2f}x"
            is_step = phase == "optimizer_step"
            cells.append(text if is_step else f"{found['graphs']}, {text}")
            if confirmed:  # of none does it lie within
                value, low, high = confirmed
                assert f"{value:.2f} [{low:.2f}, {high:.2f}]" in said
                assert not low <= found["speedup"][0] <= high
        assert f"| | {' | '.join(cells)} |" in said
    cnn = [r["forward"] for r in data["rows"] if r["target"] == "examples/cnn.py"]
    for name, text in (
        ("own_ms", "takes {} to {} ms"),
        ("eager_ms", "takes {} to {}."),
    ):
        seen = sorted(row[name] for row in cnn)
        assert text.format(f"{seen[0]:.2f}", f"{seen[-1]:.2f}") in said


@pytest.mark.parametrize("name", ["regional", "warm_start"])
def test_tables_of_exports_are_as_they_are_printed(
    name: str, script: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    script("exports", name).table(recorded(f"exports/{name}.json"))
    shown = page(f"exports/{name.upper()}.md")
    for line in capsys.readouterr().out.splitlines():
        assert line in shown


def test_what_blocks_save() -> None:
    said, data = words("exports/REGIONAL.md"), recorded("exports/regional.json")
    us = data["entry"]
    text = f"{us['all_guards_us']} µs of a call by itself, {us['no_guards_us']} without"
    assert text in said

    def of(arm: str, name: str, batch_size: int = 1) -> float:
        rows = [
            {**row, "speed": row["eager_ms"] / row["compiled_ms"]}
            for row in data["processes"]
            if (row["arm"], row["batch_size"]) == (arm, batch_size)
        ]
        return median(row[name] for row in rows)

    blocks, whole = of("regional", "compile_s"), of("full", "compile_s")
    assert f"in {blocks:.1f} s by regions and in {whole:.1f} s as a whole" in said
    speed = of("regional", "speed") / of("full", "speed")
    shorter = f"{whole / blocks:.1f} times shorter, with {100 * speed:.0f} %"
    assert shorter in said
    assert of("regional", "speed", 4) >= of("full", "speed", 4)  # "and all of it"
    assert f"six C++ kernels ({of('regional', 'cpp_s'):.1f} s)" in said


def test_what_a_cache_saves() -> None:
    warm, data = words("exports/WARM_START.md"), recorded("exports/warm_start.json")
    assert f"The cache is {data['cache_bytes'] / 1024:.0f} KiB" in warm
    assert f"making it took {data['export_s']:.0f} s" in warm
    cold, own, kept = (
        median(row["result_s"] for row in data["processes"] if row["arm"] == arm)
        for arm in ("cold", "warm", "artifacts")
    )
    assert f"first result after {own:.1f} s in place of {cold:.1f} s" in warm
    assert f"{cold / own:.2f} times sooner (95 %: 3.43 to 3.76" in warm
    assert f"gives {cold / kept:.2f} times on a CPU" in warm
    assert "[3.43, 3.76] |" in warm  # as it is printed


def seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def test_what_workloads_take() -> None:
    said, data = page("workloads/README.md"), recorded("workloads/workloads.json")
    rows = {
        "eager": "eager",
        "plain": "plain `torch.compile()`",
        "dynamic=True": "`dynamic=True`",
        "powers of two": "static, padded",
        "reduce-overhead": "static, padded",
        "pick of one shape": "pick of one ",
        "pick of the workload": "pick of the workload",
        "pick with horizon": "pick with horizon",
    }
    first, second, _ = said.split("| a decoder")[0].split("|\n\n")
    for workload, part in (
        ("encoder, cpu", first),
        ("encoder, cuda", first),
        ("detector, cpu", second),
        ("last_batch, cpu", second),
    ):
        for name, found in data[workload]["seconds"].items():
            (line,) = (x for x in part.splitlines() if x.startswith(f"| {rows[name]}"))
            cells = [cell.strip(" *") for cell in line.split("|")]
            if "error" in found[0]:
                assert "was stopped" in cells
                continue
            means = [mean(row[part] for row in found) for part in ("first_s", "next_s")]
            figures = [seconds(value) for value in means]
            assert figures in (cells[2:4], cells[4:6]), (workload, name, figures)


def test_what_is_said_of_the_encoder() -> None:
    said, data = words("workloads/README.md"), recorded("workloads/workloads.json")
    of = {
        name: [row["next_s"] for row in rows if "next_s" in row]
        for name, rows in data["encoder, cpu"]["seconds"].items()
    }
    by_hand = min(mean(of[name]) for name in ("eager", "plain", "dynamic=True"))
    assert mean(of["pick of the workload"]) < 1.01 * by_hand
    assert "within 1 % of the best by hand" in said
    apart = max(max(s) / min(s) for s in of.values() if s)
    assert f"by up to {100 * (apart - 1):.0f} % between processes" in said


def test_what_a_decoder_takes() -> None:
    said, data = page("workloads/README.md"), recorded("workloads/workloads.json")
    of = {name: rows[0] for name, rows in data["decoder, cuda"]["ms"].items()}
    faster = of["eager"]["token_ms"] / of["pick"]["token_ms"]
    assert f"gains {faster:.1f} times a token" in words("workloads/README.md")
    for name, start in (
        ("eager", "eager"),
        ("plain", "plain"),
        ("reduce-overhead", "`reduce-overhead`"),
        ("pick", "pick in five minutes"),
    ):
        *_, table = said.split("| a decoder")
        (line,) = (x for x in table.splitlines() if x.startswith(f"| {start}"))
        ms = [f"{of[name][kind]:.2f} ms" for kind in ("token_ms", "prompt_ms")]
        passes = of[name]["pass_ms"]
        ms.append(f"{passes:.1f} ms" if passes < 100 else f"{passes:.0f} ms")
        assert [cell.strip(" *") for cell in line.split("|")][2:5] == ms
