"""Reports the settings in effect in RLlib's runners and learners, in each ``train()`` result."""

from __future__ import annotations

import time
import warnings
from typing import Any

__all__ = ["NotInEffect", "Tell"]

_ANSWER_S = 30.0  # timeout for the answer of a runner or learner
_AGAIN_S = 10.0  # minimum time between two queries, unless a runner has died or started


class NotInEffect(RuntimeError):
    """A requested setting is not in effect."""


class Tell:
    """An ``on_train_result`` callback that adds the active settings to each result.

    In an asynchronous algorithm a runner answers only between two samples, which takes time, so
    runners are queried every ten seconds at most.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._asked_s = 0.0
        self._known: Any = None
        self._told: dict[str, list[dict[str, Any]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tell, (self._strict,))

    def __call__(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        groups = {
            "env_runners": algorithm.env_runner_group,
            "eval_runners": algorithm.eval_env_runner_group,
        }
        groups = {name: group for name, group in groups.items() if group is not None}
        known = [
            (group.num_healthy_remote_workers(), group.num_remote_worker_restarts())
            for group in groups.values()
        ]
        if known != self._known or time.monotonic() - self._asked_s > _AGAIN_S:
            self._told = _ask(groups, algorithm.learner_group)
            self._known, self._asked_s = known, time.monotonic()
        result["autocompile"] = self._told
        every = [one for part in self._told.values() for one in part]
        problems = dict.fromkeys(p for one in every for p in one["problems"])
        if problems and self._strict:
            hint = "tuned(config, settings, strict=False) goes on without it"
            raise NotInEffect(f"{'; '.join(problems)}. {hint}")
        slow = [one["silent"] for one in every if "silent" in one]
        if slow or problems:
            warnings.warn("; ".join([*slow, *problems]), stacklevel=2)


def _ask(groups: dict[str, Any], learners: Any) -> dict[str, list[dict[str, Any]]]:
    told = {}
    for name, group in groups.items():
        found = group.foreach_env_runner(_active_in_runner, timeout_seconds=_ANSWER_S)
        # Counted afterwards: ray knows of a runner that has died since, and restarts it.
        missing = _missing(group.num_healthy_env_runners(), found, name)
        told[name] = [one for one in found if one] + missing
    answers = learners.foreach_learner(_active_in_learner, timeout_seconds=_ANSWER_S)
    said = [answer.get() for answer in answers if answer.ok]
    told["learners"] = said + _missing(max(1, len(learners)), said, "learners")
    return told


def _missing(expected: int, answers: list[Any], name: str) -> list[dict[str, Any]]:
    """Entry for the processes that did not answer; a problem only if none did: some may be busy."""
    if len(answers) >= expected:
        return []
    silent = f"{expected - len(answers)} of {expected} {name.replace('_', ' ')} did not answer"
    if answers:
        return [{"settings": {}, "problems": [], "silent": silent}]
    return [{"settings": {}, "problems": [silent]}]


def _active_in_runner(runner: Any) -> dict[str, Any] | None:
    if not hasattr(runner, "tell_active"):
        return {"settings": {}, "problems": [f"a {type(runner).__name__} uses no settings"]}
    return runner.tell_active() if runner.env is not None else None


def _active_in_learner(learner: Any, **_: Any) -> dict[str, Any]:
    return learner.tell_active()  # type: ignore[no-any-return]
