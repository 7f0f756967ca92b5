"""Opens a run: its folder, what the probes find, and whether an earlier run can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autocompile.errors import RunError
from autocompile.execute.executor import Executor
from autocompile.execute.interpreter import demand_torch
from autocompile.execute.job import JobFactory, locked
from autocompile.progress import Progress
from autocompile.protocol.results import ProbeResult
from autocompile.search.probe import probe
from autocompile.space.plan import Plan
from autocompile.store import runs
from autocompile.store.record import SCHEMA, RunFolder

__all__ = ["described", "opened", "probe_all", "resolved"]

Found = Mapping[str, ProbeResult]


def resolved(plan: Plan, run_dir: str | Path | None, resume: bool) -> tuple[RunFolder, Plan]:
    """The run's folder and plan; of a resumed run, the plan that it was started with.

    Raises:
        UsageError: something else was asked for than the run was made with.
        RunError: the folder cannot be used, or there is no run to resume.
    """
    if resume:
        folder = RunFolder(run_dir) if run_dir else runs.latest_of(plan.target)
        return folder, plan.resumes(Plan.from_dict(folder.read_run()["plan"]))
    folder = RunFolder(run_dir) if run_dir else runs.new_folder(plan.target)
    if folder.run_json.exists():
        with locked(folder):  # raises another error if the run is active
            pass
        raise RunError(f"{folder.path} already holds a run", hint="the same command with --resume")
    if folder.holds_something_else():
        raise RunError(
            f"the folder {folder.path} is not empty and holds no run",
            "a run writes and removes files in its folder, so the folder must be its own",
            hint="--run-dir with a new folder",
        )
    return folder, plan


@contextlib.contextmanager
def opened(folder: RunFolder) -> Iterator[None]:
    """Create the folder of a new run and hold it for this process.

    Removes it again if an error occurs before ``run.json`` exists, unless the error names a log in
    it, or another tuner uses it.
    """
    try:
        if not folder.run_json.exists():
            folder.create()
        with locked(folder):
            yield
    except BaseException as error:
        if f"log: {folder.path}" not in str(error):
            with contextlib.suppress(RunError), locked(folder):
                if not folder.run_json.exists():
                    folder.remove()
        raise


def probe_all(
    plan: Plan, job_factory: JobFactory, executor: Executor, progress: Progress
) -> tuple[Plan, Found]:
    """What the probe of each environment has found, the tuner's own first.

    The plan gets the phases that were found: default phases depend on a timing, and the other
    interpreters and a resumed run must use the same.

    Raises:
        UsageError, TargetError: an interpreter or the target cannot be used.
    """
    for _, python in plan.pythons:
        demand_torch(python, job_factory.timeout_s)
    found = {"default": probe(plan, job_factory, executor, progress)}
    plan = dataclasses.replace(plan, phases=tuple(found["default"].target["phases"]))
    for name, _ in plan.pythons:
        found[name] = probe(plan, job_factory, executor, progress, name)
    return plan, found


def described(folder: RunFolder, plan: Plan, every: Found) -> dict[str, Any]:
    """The content of ``run.json``; of a resumed run, the existing one.

    Raises:
        RunError: the machine, torch, python or the target's file has changed.
    """
    from autocompile import __version__

    found = every["default"]
    if folder.run_json.exists():
        run = folder.read_run()
        _demand_unchanged(folder, plan, run, every)
        return run
    others = {name: seen for name, seen in every.items() if name != "default"}
    return {
        "schema": SCHEMA,
        "id": secrets.token_hex(4),
        "plan": plan.to_dict(),
        "environment": {"autocompile": __version__, **found.environment},
        "environments": {
            name: {"python_path": dict(plan.pythons)[name], **seen.environment}
            for name, seen in others.items()
        },
        "target": found.target,
        "phases": found.target["phases"],
        "toolchain_s": found.toolchain_s,
        "interrupted": True,  # until it has finished
    }


def _demand_unchanged(folder: RunFolder, plan: Plan, run: Mapping[str, Any], every: Found) -> None:
    here = every["default"].environment
    changes = [
        (name, run["environment"][name], here[name]) for name in ("torch", "device_name", "python")
    ]
    changes += [
        (f"torch in the environment {name}", seen["torch"], every[name].environment["torch"])
        for name, seen in run.get("environments", {}).items()
        if name in every
    ]
    for what, then, now in changes:
        if then != now:
            raise RunError(
                f"{folder.path} was made with another {what}",
                f"{then} then, {now} now",
                hint="the same command without --resume",
            )
    if run["target"].get("sha256") != every["default"].target.get("sha256"):
        raise RunError(
            f"{plan.target} has changed since {folder.path} was made",
            "its finished trials measured another model",
            hint="the same command without --resume",
        )
