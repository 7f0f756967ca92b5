"""RLlib: an AlgorithmConfig whose env runners and learners use the tuned settings."""

from __future__ import annotations

from autocompile.errors import ExportError
from autocompile.export.choices import Report, choices, command, file_note, header, is_rl
from autocompile.export.text import comment, literal, program
from autocompile.settings.phases import phase_of
from autocompile.settings.tuned import Tuned

__all__ = ["export"]

_APPLY = '''
def apply(config):
    """A copy of an AlgorithmConfig whose runners and learners use the settings."""
    return tuned(config, SETTINGS)
'''


def export(report: Report) -> str:
    """A script that holds the settings and defines ``apply(config)``."""
    found = choices(report)
    if not is_rl(report):
        raise ExportError(
            "RLlib has no form for this result: the target is not an RLModule",
            f"its phases: {', '.join(found)}",
            hint=command(report, "--to python"),
        )
    settings = Tuned.from_report(report).to_dict()
    settings["phases"] = {n: c for n, c in settings["phases"].items() if phase_of(n).in_rllib}
    if not settings["phases"]:
        raise ExportError(
            f"RLlib has no form for the phases {', '.join(found)}",
            hint=command(report, "--to python"),
        )
    evidence = [comment(f"{name}: {found[name].evidence}") for name in settings["phases"]]
    return program(
        header(report, "RLlib settings") + "".join(evidence),
        "from autocompile.rllib import tuned",
        f"{file_note(report, 'The same as a file')}\nSETTINGS = {literal(settings, '')}",
        _APPLY,
    )
