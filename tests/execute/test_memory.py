"""How many trials find memory at once, before the first has ended."""

from __future__ import annotations

import pytest

from autocompile.execute import memory
from autocompile.execute.local import LocalExecutor
from autocompile.execute.memory import Held, trials_at_once

GIB = 2**30
CONTEXT = GIB


def forward(parameters: int, call: int = 0) -> Held:
    return Held(parameters, 0, steps=False, gives_back=False, call=call)


def adam(parameters: int, gives_back: bool = True) -> Held:
    return Held(parameters, 2 * parameters, steps=True, gives_back=gives_back)


def test_a_step_with_adam_takes_nine_times_its_parameters_and_a_forward_pass_three() -> (
    None
):
    assert adam(GIB).by_trial == 9 * GIB
    assert forward(GIB).by_trial == 3 * GIB
    assert forward(GIB, call=GIB).by_trial == 5 * GIB, "eager's call and the setting's"
    assert adam(GIB, gives_back=False).by_trial > adam(GIB).by_trial


@pytest.mark.parametrize(
    ("held", "trials"),
    [
        (forward(3 * 2 * 10**9), 4),  # 3 B in bfloat16
        (forward(3 * 4 * 10**9), 2),  # in float32
        (adam(13 * 2 * 10**8), 3),  # a step of 1.3 B in bfloat16
        (adam(13 * 4 * 10**8), 1),
        (adam(13 * 4 * 10**9), 0),  # nothing fits, and yet one is tried
    ],
)
def test_what_the_memory_of_a_gpu_holds_side_by_side(held: Held, trials: int) -> None:
    assert trials_at_once([forward(1), held], 80 * 10**9, CONTEXT) == trials


def test_on_a_cpu_the_free_memory_of_the_machine_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "most_memory_bytes", lambda: 16 * GIB)
    assert trials_at_once([], None, CONTEXT) == 8
    assert trials_at_once([adam(GIB // 2)], None, CONTEXT) == 2
    assert trials_at_once([adam(2 * GIB)], None, CONTEXT) == 0


def test_a_large_model_lowers_the_slots_and_a_number_of_jobs_is_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autocompile.execute.local.default_jobs", lambda: 4)
    for jobs, trials, slots in ((None, 2, 2), (None, 0, 1), (None, 9, 4), (3, 1, 3)):
        executor = LocalExecutor(jobs=jobs)
        executor._make_room(trials)
        assert executor.slots == slots
        executor.close()
