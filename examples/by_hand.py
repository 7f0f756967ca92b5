"""What autocompile.tune() does, by its parts: ask, try, record; race the best; decide.

python examples/by_hand.py
"""

import contextlib
import dataclasses
import itertools
import tempfile

from autocompile import progress, result
from autocompile.estimate import decision
from autocompile.execute import job, local
from autocompile.protocol.requests import Header, Side, TimingLimits, TrialRequest
from autocompile.request import Request
from autocompile.search import effects, jobs, opening, optuna_study, records, sampler
from autocompile.settings import searchspace
from autocompile.space import space
from autocompile.store.record import Checks, RunFolder

# What is timed, at which batch size, and how many settings are tried.
PHASE, SIZE, TRIALS = "forward", 4, 5


def tune(target, backends, run, executor):
    wanted = searchspace.SearchSpace(backends=backends, batch_sizes=(SIZE,))
    asked = Request(str(target), phases=(PHASE,), space=wanted)
    factory = job.JobFactory(run, Header.of(asked), 300.0, None)

    def in_a_child(*sides, **more):  # which may end in any way: that is an ending too
        place = {"number": factory.next_number(), "phase": PHASE, "batch_size": SIZE}
        request = TrialRequest(header=factory.header, sides=sides, **place, **more)
        ending = jobs.run_job(executor, factory.job(request), progress.Progress())
        return records.records_of(request, ending)

    def keep(record):
        # A file of JSON: the records in the run's folder are the truth.
        run.save(record)
        print(record.role, record.config.label(), record.outcome.value, record.message)

    found = {"default": opening.probe(asked, factory, executor, progress.Progress())}
    settings = space.spaces_of(asked, found)[PHASE].settings
    priors, sizes = {PHASE: effects.Prior()}, {PHASE: SIZE}
    portfolio = sampler.PortfolioSampler(settings, priors, sizes)
    study = optuna_study.OptunaStudy(portfolio, run, print)
    study.restore([])
    for setting in itertools.islice(iter(study.ask, None), TRIALS):
        (record,) = in_a_child(Side(setting.config))
        keep(record)
        study.tell(record)

    for race in (1, 2, 3):  # each in a process of its own, since processes differ
        decided = decision.decide_all(run.read()[0])[SIZE]
        best = [candidate.record for candidate in decision.finalists(decided)]
        known = {"is_warm": True, "checks": Checks.FIRST}  # the first trials made all
        sides = [
            Side(r.config, r.number, str(factory.cache_of(r.number)), **known)
            for r in best
        ]
        limits = TimingLimits.exactly(rounds=24, max_s=3.0)
        for record in in_a_child(*sides, limits=limits):
            keep(dataclasses.replace(record, number=factory.next_number(), race=race))
    facts = opening.described(run, asked, found)
    return result.make_result(run, facts, run.read()[0])


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as path,
        contextlib.closing(local.LocalExecutor()) as runs,
    ):
        (folder := RunFolder(f"{path}/run")).create()
        print(tune("examples/cnn.py", ("inductor",), folder, runs).export("python"))
