"""What parent and child say to each other: requests, events and results."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autocompile.errors import RunError
from autocompile.execute.executor import Ending
from autocompile.protocol.events import ChannelError, EventName, LineReader, encode
from autocompile.protocol.requests import (
    AlgorithmRequest,
    AlgorithmResult,
    ExportedCode,
    Header,
    ProbeRequest,
    ProbeResult,
    Request,
    SaveRequest,
    SaveResult,
    Side,
    TimingLimits,
    TrialRequest,
    TrialResult,
    read_request,
)
from autocompile.search.records import records_of, to_record
from autocompile.settings.config import CompileConfig, Setting
from autocompile.settings.tuned import Choice, Tuned, TunedSet
from autocompile.store.reading import plain
from autocompile.store.record import (
    Checks,
    GraphBreak,
    Measurement,
    Outcome,
    Record,
    Step,
    TaskResult,
)

# --- requests ------------------------------------------------------------------------------------

HEADER = Header("net.py:net", "cpu", 3, 0.01)
CONFIG = CompileConfig("inductor", options=(("max_autotune", True),), dynamic=True)
TUNED = Tuned(
    {"forward": (Choice(CONFIG, 4, {"value": 1.5, "low": 1.4, "high": 1.6}, 3),)}, {}
)
RACED = Side(CONFIG, repeats=7, cache="cache/0007", is_warm=True)
EXPORTED = replace(RACED, exported=ExportedCode("model = model", TUNED))
RACE: dict[str, Any] = {
    "phase": "forward",
    "limits": TimingLimits.exactly(24, 3.0),
}
REQUESTS: dict[str, Request] = {
    "trial": TrialRequest(
        header=HEADER,
        number=4,
        phase="forward",
        sides=(Side(CONFIG),),
        batch_size=4,
        limits=TimingLimits(beat=1.3),
        calls_per_update=10,
    ),
    "race": TrialRequest(
        header=HEADER,
        number=5,
        sides=(RACED, Side(CONFIG, 8, checks=Checks.FIRST)),
        batch_size=4,
        **RACE,
    ),
    "exported": TrialRequest(header=HEADER, number=6, sides=(EXPORTED,), **RACE),
    "probe": ProbeRequest(
        header=HEADER, phases=("forward",), batch_size=4, toolchain="cache"
    ),
    "save": SaveRequest(header=HEADER, number=8, settings=TUNED, file="tuned.cache"),
    "in_algorithm": AlgorithmRequest(
        header=HEADER, number=0, tuned=TunedSet((TUNED, TUNED)), budget_s=60.0
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_that_was_written_is_read_as_it_was(
    kind: str, tmp_path: Path
) -> None:
    request = REQUESTS[kind]
    (tmp_path / "request.json").write_text(json.dumps(request.to_dict()))
    assert read_request(tmp_path) == request
    is_trial = kind in ("race", "exported")
    assert request.to_dict()["kind"] == ("trial" if is_trial else kind)
    assert request.to_dict()["target"] == "net.py:net", (
        "the header is no object of its own"
    )


@pytest.mark.parametrize(
    ("changes", "said"),  # ... stands for a key that is missing
    [
        ({"kind": "bake"}, "'bake'"),
        ({"kind": ...}, "'kind'"),
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
        ({"limits": {"joules": 3}}, "unexpected keyword argument 'joules'"),
        (
            {"sides": [{"config": {"flavour": 1}}]},
            "a compile setting has no key 'flavour'",
        ),
        ({"sides": [{"config": 3}]}, "config is 3"),
        ({"sides": []}, "a trial has no side"),
        (
            {"sides": [{"config": {}}, {"config": {}}]},
            "a first trial that compiles has one side only",
        ),
        (
            {
                "sides": [
                    {"config": {}, "repeats": 1},
                    {"config": {"precision": "high"}, "repeats": 2},
                ],
            },
            "different precisions",
        ),
        ({"sides": [{"config": {}, "checks": "some"}]}, "'some' is not a valid Checks"),
        ({"phase": ...}, "missing 1 required"),
    ],
)
def test_what_is_not_understood_is_one_paragraph(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = REQUESTS["trial"].to_dict() | changes
    text = json.dumps({k: v for k, v in data.items() if v is not ...})
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(RunError, match=said) as caught:
        read_request(tmp_path)
    assert caught.value.what.startswith(f"cannot read {tmp_path / 'request.json'}: ")
    assert "\n\n" not in caught.value.text()


def test_a_folder_without_a_request_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot read"):
        read_request(tmp_path)
    for text in ("", "[]", '{"kind"'):
        (tmp_path / "request.json").write_text(text)
        with pytest.raises(RunError, match=r"request\.json"):
            read_request(tmp_path)


# --- events --------------------------------------------------------------------------------------


def test_events_are_read_as_they_were_sent_in_whatever_pieces_they_arrive() -> None:
    lines = [
        encode("n", EventName.STEP, step="compile"),
        encode("n", EventName.EXCLUSIVE),
        encode("n", EventName.RESULT, outcome="ok", notes=["ü\n"]),
    ]
    data, reader = "".join(lines).encode(), LineReader("n")
    events = [event for i in range(len(data)) for event in reader.feed(data[i : i + 1])]
    assert events == [
        (EventName.STEP, {"step": "compile"}),
        (EventName.EXCLUSIVE, {}),
        (EventName.RESULT, {"outcome": "ok", "notes": ["ü\n"]}),
    ]


def test_numbers_of_numpy_arrive_as_numbers_and_other_things_as_words() -> None:
    line = encode(
        "n", EventName.RESULT, lr=np.float32(0.25), count=np.int64(3), place=Path("a")
    )
    ((_, message),) = LineReader("n").feed(line.encode())
    assert message == {"lr": 0.25, "count": 3, "place": "a"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"hello\n", "no JSON"),
        (b"[" * 100_000 + b"\n", "no JSON"),
        (b"[1]\n", "wrong nonce"),
        (b'{"nonce": "m", "event": "step"}\n', "wrong nonce"),
        (b'{"nonce": "n", "event": "dance"}\n', "'dance' is not a valid EventName"),
        (b'{"nonce": "n"}\n', "None is not a valid EventName"),
        (b"x" * (8 * 2**20 + 1), "a line of more than"),
    ],
)
def test_what_is_no_event_is_refused(line: bytes, said: str) -> None:
    with pytest.raises(ChannelError, match=said):
        LineReader("n").feed(line)


# --- results -------------------------------------------------------------------------------------

RECORD = Record(
    3,
    "forward",
    CONFIG,
    4,
    outcome=Outcome.OK,
    step=Step.EXIT,
    notes=["a note"],
    measurement=Measurement((1.0, 1.0), (0.5, 0.5)),
    compile_window=(1.0, 2.5),
    breaks=[GraphBreak(place="net.py:3", reason="a loop")],
)
RESULTS = [
    TrialResult(outcome=Outcome.OK, sides=[RECORD]),
    ProbeResult(message="it raised", where="net.py:3   f()", during="get_inputs(4)"),
    SaveResult(outcome=Outcome.OK, left_out=["why"], graphs=1),
    AlgorithmResult(
        outcome=Outcome.OK, rounds=[{"tuned": {"train_s": 1.0}}], runners=2
    ),
]


def sent(result: TaskResult) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(plain(result)))
    return {**data, "joules": 3}  # of another version


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_a_result_that_was_sent_is_read_as_it_was(result: TaskResult) -> None:
    assert type(result).read(sent(result)) == result


def test_a_record_that_was_sent_is_read_as_it_was() -> None:
    assert Record.from_dict(sent(RECORD)) == RECORD


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 3},
        {"backends": {"inductor": 1}},
        {"all_backends": "inductor"},
        {"toolchain_s": True},
        {"toolchain_s": float("nan")},
        {"outcome": "melted"},
    ],
)
def test_a_result_of_other_types_is_one_paragraph(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="the result of a process makes no sense: "):
        ProbeResult.read(wrong)


def test_what_is_no_side_of_a_race_is_passed_over() -> None:
    side, unknown = sent(RECORD), sent(RECORD) | {"number": 8}
    sides = [3, None, unknown, side, {**side, "number": [3]}]
    ended = Ending(Outcome.OK, Step.EXIT, payload={"sides": sides}, wall_s=2.0)
    race = a_race(3)
    (found,) = records_of(race, ended)
    assert (found.repeats, found.role, found.wall_s) == (3, "confirm", 2.0)
    assert found.measurement == RECORD.measurement
    for nothing in ("all", [{**side, "outcome": "fine"}]):
        made = dataclasses.replace(ended, payload={"sides": nothing})
        assert records_of(race, made) == []


def a_race(*trials: int) -> TrialRequest:
    sides = tuple(Side(CONFIG, trial) for trial in trials)
    return TrialRequest(header=HEADER, number=9, sides=sides, batch_size=4, **RACE)


CRASH = Ending(Outcome.CRASHED, Step.MEASURE, "SIGSEGV in measure", wall_s=2.0)


def test_a_crash_of_a_race_is_of_the_side_that_was_at_work_or_nobodys() -> None:
    (found,) = records_of(a_race(3, 4), CRASH, at_work=4)
    assert (found.repeats, found.outcome) == (4, Outcome.CRASHED)
    assert found.message == "SIGSEGV in measure"
    assert records_of(a_race(3, 4), CRASH, at_work=-1) == []
    stopped = dataclasses.replace(CRASH, outcome=Outcome.INTERRUPTED)
    assert records_of(a_race(3, 4), stopped, at_work=4) == []


def test_a_crash_in_the_later_checks_of_a_race_is_a_failure_of_who_was_at_work() -> (
    None
):
    """The others keep what they have measured, and who was stopped has not failed."""
    sides = [{**sent(RECORD), "number": number} for number in (3, 4)]
    measured = {"sides": [{**side, "checks": "first"} for side in sides]}
    cut = Ending(Outcome.OK, Step.EXIT, payload=measured, cut=Outcome.CRASHED)
    right, crashed = records_of(a_race(3, 4), cut, at_work=4)
    assert right.ok and right.checks is Checks.FIRST
    assert (crashed.outcome, crashed.step) == (Outcome.CRASHED, Step.VERIFY)
    assert crashed.measurement is None
    stopped = dataclasses.replace(cut, cut=Outcome.INTERRUPTED)
    assert all(record.ok for record in records_of(a_race(3, 4), stopped, at_work=4))


def test_what_does_not_say_that_it_has_passed_all_checks_has_not() -> None:
    said = {k: v for k, v in sent(RECORD).items() if k != "checks"}
    ended = Ending(Outcome.OK, Step.EXIT, payload=said)
    assert to_record(7, Setting(CONFIG, 4), ended).checks is Checks.FIRST
    assert Record.from_dict(said).checks is Checks.ALL, "as of an older version"


def test_what_ends_a_settings_first_trial_ends_the_setting_wherever_it_happens() -> (
    None
):
    request = REQUESTS["trial"]
    assert isinstance(request, TrialRequest)
    for at_work in (-1, 4):
        (record,) = records_of(request, CRASH, at_work)
        assert (record.number, record.role) == (4, "search")
        assert (record.outcome, record.wall_s) == (Outcome.CRASHED, 2.0)
    # While it loads, no side has had its turn: the process tells where.
    unmade = sent(TrialResult(where="net.py:3   f()", sides=[RECORD]))
    unmade["sides"][0] |= {"outcome": "interrupted", "measurement": None}
    loads = Ending(Outcome.IMPORT_ERROR, Step.IMPORT, "no net", payload=unmade)
    (record,) = records_of(request, loads)
    assert (record.outcome, record.where) == (Outcome.IMPORT_ERROR, "net.py:3   f()")


def test_what_happens_after_a_measurement_is_a_note_of_the_record() -> None:
    request = REQUESTS["trial"]
    assert isinstance(request, TrialRequest)
    told = "after its measurement: SIGSEGV in verify"
    measured = sent(TrialResult(sides=[RECORD]))
    ending = Ending(Outcome.OK, Step.EXIT, told, payload=measured)
    (record,) = records_of(request, ending)
    assert record.ok and not record.message
    assert record.notes == ["a note", told]


def test_what_a_child_says_of_its_place_in_a_run_is_the_parents_business() -> None:
    forged = sent(RECORD) | {
        "phase": "train_step",
        "role": "confirm",
        "race": 1,
        "wall_s": 0.0,
    }
    forged |= {
        "duplicate_of": 1,
        "config": {"backend": "eager"},
        "number": 5,
        "repeats": 2,
    }
    ended = Ending(Outcome.OK, Step.EXIT, payload=forged, wall_s=2.0)
    record = to_record(7, Setting(CONFIG, 4), ended)
    assert (record.number, record.phase, record.config) == (7, "forward", CONFIG)
    assert (record.role, record.race, record.repeats) == ("search", None, None)
    assert (record.wall_s, record.duplicate_of) == (2.0, None)


@pytest.mark.parametrize("breaks", ["x", ["x"], [{"place": 3}]])
def test_breaks_of_another_form_are_no_result(breaks: Any) -> None:
    payload = {**RECORD.to_dict(), "breaks": breaks}
    ending = Ending(Outcome.OK, Step.EXIT, payload=payload)
    record = to_record(7, Setting(CONFIG, 4), ending)
    assert record.outcome is Outcome.INFRASTRUCTURE
    assert "breaks" in record.message or "place" in record.message
    fit = dataclasses.replace(ending, payload=RECORD.to_dict())
    assert to_record(7, Setting(CONFIG, 4), fit).breaks == RECORD.breaks


def test_an_error_that_was_explained_is_raised_as_it_was() -> None:
    explained = {
        "what": "no such phase",
        "details": ["it has: forward"],
        "hint": "--phase forward",
    }
    error = ProbeResult.read({"explained": explained}).error
    assert error is not None
    assert error.text() == "no such phase\n  it has: forward\n  try: --phase forward"
    assert ProbeResult().error is None


@pytest.mark.parametrize(
    "payload",
    [
        {"measurement": 3},
        {"measurement": {"eager_s": [1.0], "compiled_s": ["fast"]}},
        {"measurement": {}, "notes": 3},
        {"detail": None},
        {"compile_s": "long"},
        {"compile_s": float("inf")},
        {"detail": {"share": float("nan")}},
        {"graphs": True},
        {"compile_window": [1.0]},
    ],
)
def test_a_result_that_makes_no_sense_is_recorded_as_infrastructure(
    payload: Any,
) -> None:
    ending = Ending(Outcome.OK, Step.EXIT, payload=payload)
    record = to_record(0, Setting(CONFIG, 4), ending)
    assert record.outcome is Outcome.INFRASTRUCTURE
    assert record.message.startswith("its result makes no sense: ")
