"""Settings of several machines in one file, and which of them is taken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import RUNS, said, unpack

from autocompile.commands import verify as verifying
from autocompile.errors import RunError, UsageError
from autocompile.progress import Progress
from autocompile.request import Request
from autocompile.rllib import gain
from autocompile.settings.config import CompileConfig
from autocompile.settings.tuned import Choice, Tuned, TunedSet
from autocompile.store.report import Report

FAST = {"value": 1.5, "low": 1.4, "high": 1.6}


def entry(device: str, name: str, torch: str = "2.13.0", **more: Any) -> Tuned:
    fingerprint = {"torch": torch, "device": device, "device_name": name, **more}
    return Tuned(
        {"forward": (Choice(CompileConfig(), 4, FAST, 3),)}, fingerprint, "net.py"
    )


H100, T4, CPU = (
    entry("cuda:0", "NVIDIA H100 80GB HBM3", cuda="13.0"),
    entry("cuda:0", "Tesla T4", cuda="13.0"),
    entry("cpu", "AMD EPYC", threads=2),
)
EVERY = TunedSet((H100, T4, CPU))


@pytest.mark.parametrize("own", [H100, T4, CPU])
def test_the_entry_of_the_device_is_taken(own: Tuned) -> None:
    found = EVERY.fitting(own.fingerprint)
    assert found == own and found.differences(own.fingerprint) == []
    # Another version, or another of several equal ones, is no other device.
    there = {**own.fingerprint, "torch": "2.15.0", "threads": 64}
    there["device"] = str(there["device"]).replace(":0", ":3")
    assert EVERY.fitting(there) == own
    assert found.differences(there)[0] == "torch 2.13.0, here 2.15.0"


def test_among_entries_of_one_device_the_least_differences_decide() -> None:
    newer = entry("cuda:0", "Tesla T4", torch="2.15.0", cuda="13.0")
    both = TunedSet((T4, newer))
    assert both.fitting(newer.fingerprint) == newer
    assert both.fitting(T4.fingerprint) == T4
    assert both.fitting({**T4.fingerprint, "torch": "3.0"}) == T4  # of equals the first


def test_where_none_fits_the_nearest_is_taken() -> None:
    a100 = {
        "torch": "2.13.0",
        "device": "cuda:0",
        "device_name": "A100",
        "cuda": "13.0",
    }
    found = EVERY.fitting(a100)
    assert found == H100
    assert found.differences(a100) == ["device_name NVIDIA H100 80GB HBM3, here A100"]
    xeon = {"torch": "2.13.0", "device": "cpu", "device_name": "Xeon", "threads": 8}
    assert EVERY.fitting(xeon) == CPU
    assert (
        TunedSet((H100,)).fitting(xeon) == H100
    )  # as ever: a warning says what differs


def test_several_are_written_as_a_list_of_what_each_is_alone(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    for made in (EVERY, TunedSet((T4,))):
        path.write_text(made.to_json())
        assert TunedSet.read(path) == made
        assert {one.folder for one in TunedSet.read(path).entries} == {str(tmp_path)}
        assert TunedSet.read(json.loads(path.read_text())) == made
    assert TunedSet((T4,)).to_dict() == T4.to_dict()
    assert EVERY.to_dict()["machines"][1] == T4.to_dict()


# The command --------------------------------------------------------------------------------------


def copied(name: str, folder: str, **environment: Any) -> str:
    """A recorded report as one of another machine."""
    report = json.loads((RUNS / name / "report.json").read_text("utf-8"))
    report["environment"] |= environment
    Path(folder).mkdir()
    Path(folder, "report.json").write_text(json.dumps(report))
    return f"{folder}/report.json"


def test_runs_of_several_machines_are_one_file(work: Path) -> None:
    unpack("cpu")
    t4 = copied("cpu", "t4", device="cuda:0", device_name="Tesla T4")
    text = said("export", "cpu", t4, "-o", "tuned.json")
    assert "wrote tuned.json, for 2 machines" in text
    here, there = TunedSet.read("tuned.json").entries
    assert said("export", "cpu", "-o", "alone.json").endswith("wrote alone.json\n")
    assert TunedSet.read("alone.json").entries == (here,)
    assert (
        there.fingerprint["device_name"] == "Tesla T4" and there.phases == here.phases
    )
    assert f"warning: {t4}: NOT CONFIRMED: optimizer_step" in text
    assert said("export", "cpu", t4, "--to", "json").endswith(
        Path("tuned.json").read_text()
    )


def test_what_makes_no_file_of_several_machines_is_said(work: Path) -> None:
    unpack("cpu")
    same = copied("cpu", "same")
    other = copied("rllib", "other", device_name="Tesla T4")
    t4 = copied("cpu", "t4", device_name="Tesla T4")
    for words, *line in (
        (f"cpu and {same} are of the same machine", same, "-o", "tuned.json"),
        ("speeds of different targets", other, "-o", "tuned.json"),
        (f"autocompile export cpu {t4} -o tuned.json", t4),
        ("settings of several are JSON", t4, "--to", "python"),
        ("so takes one run", t4, "-o", "tuned.json", "--with-cache"),
    ):
        assert words in said("export", "cpu", *line)
    assert not Path("tuned.json").exists()


def test_verify_tries_the_entry_of_this_machine(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Tuned] = []

    def request_for(entry: Tuned, *_: Any) -> Any:
        tried.append(entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(verifying, "request_for", request_for)
    with pytest.raises(KeyboardInterrupt):
        verifying.verify(EVERY, None, {}, {"device": "cpu"}, Progress())
    assert tried == [CPU]


def test_an_algorithm_is_that_of_the_entry_of_this_machine(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def compare(request: Request, *_: Any) -> Any:
        tried.append(request.target)
        raise RunError("enough is known")

    monkeypatch.setattr(gain, "compare_in_algorithm", compare)
    gpu = replace(T4, target="gpu/net.py")
    Path("tuned.json").write_text(TunedSet((gpu, CPU)).to_json())
    assert "enough is known" in said("verify", "tuned.json", "--in-algorithm")
    assert tried == ["net.py"]


def test_where_nothing_but_eager_mode_worked_that_is_the_choice() -> None:
    report = Report.read(json.loads((RUNS / "cpu" / "report.json").read_text()), "cpu")
    phase = report.phases["forward"]
    assert phase.answer.verdict == "keep_eager" and phase.answer.next is None
    tuned = Tuned.from_report(report)
    choice = tuned.at("forward")
    assert choice is not None and choice.config.is_eager
    assert choice.batch_size == phase.answer.batch_size == tuned.batch_sizes["forward"]


def test_without_a_size_it_is_the_choice_that_the_report_shows() -> None:
    """Not that of the largest batch size that was measured."""
    sizes = tuple(Choice(CompileConfig(), n, FAST, 3) for n in (1, 4, 16))
    one = replace(CPU, phases={"forward": sizes}, batch_sizes={"forward": 4})
    choice = one.at("forward")
    assert choice is not None and choice.batch_size == 4


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": "4"},
        {"batch_size": 0},
        {"confirmed_processes": "many"},
        {"speedup": {"value": 1.0, "low": 0.0, "high": 2.0}},
        {"speedup": {"value": "fast"}},
    ],
)
def test_a_choice_that_makes_no_sense_is_one_paragraph(change: dict[str, Any]) -> None:
    data = CPU.to_dict()
    data["phases"]["forward"][0] |= change
    with pytest.raises(UsageError, match="is damaged"):
        Tuned.from_dict(data, "tuned.json")
