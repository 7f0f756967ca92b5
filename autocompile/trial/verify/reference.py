"""The reference: what eager mode gives for the calls that are compared, and what rounding moves.

Eager is run twice before anything is compiled; where the two differ, that is its own noise. What
rounding moves is found out when a check first asks. One process has one reference, which all
settings that it tries share.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from autocompile.errors import TargetError, first_words
from autocompile.runtime.ranks import here
from autocompile.settings.config import EAGER, CompileConfig
from autocompile.settings.phases import STEP, TRAIN_STEP, phase_of
from autocompile.trial.model.calls import Calls, Sample, each_call
from autocompile.trial.model.sides import Side, Turns, make_side
from autocompile.trial.model.state import (
    State,
    changing_attributes,
    generator_states,
    perturb,
    random_states,
)
from autocompile.trial.model.target import Target, seed_everything
from autocompile.trial.values import (
    copies,
    copy_inputs,
    rewritten,
    tensors_by_path,
)
from autocompile.trial.verify import compared, draws
from autocompile.trial.verify.compare import (
    TRIES,
    Movement,
    Moving,
    largest,
    mismatch_scale,
    relative_differences,
)
from autocompile.trial.verify.draws import EagersDraws
from autocompile.trial.verify.layout import Layout, layout_of
from autocompile.trial.verify.outputs import (
    CHANGES,
    LastResults,
    View,
    copy_view,
    has_nan,
    has_number,
    has_tensor,
    opaque_types,
    refusal,
    without,
)
from autocompile.trial.verify.rounding import RoundOtherwise

MOST_NOISE = 0.05  # if eager differs from itself by more, nothing is compared with it
# Compared before the timing: CUDA graphs warm up in the first, record the second, replay the third.
_FIRST_CALLS = 3
# Of a step, which takes longest: then what an optimizer keeps is no longer new. A third is made from
# that state.
_FIRST_STEPS = 2
# Before a setting is refused, eager is run so many times more without rounding otherwise: gradients
# of a step moved by a hundredth in some calls while others used the GPU (`by_itself` in
# studies/verification/h200.json).
_AGAIN = 8
# Of the length of all gradients: where rounding moves them by more, only their lengths say much.
_MOST_ROUNDING = 0.5


class Reference:
    """Eager mode, run twice.

    Args:
        batches: two, with different values; call ``n`` uses batch ``n % 2``, and ``seed + n``.
        notes: gets sentences for the user.
        tolerance: the user's, for outputs.
        precision: eager mode with a setting's precision, which the setting must agree with.
        is_whole: that is of the whole step, as the setting's scope is.

    Attributes:
        eager: the eager side; its kept state is what later calls start from.
        batches: the inputs that are compared, which may be fewer than those of a pass.
        expected: eager's views of the first calls; of a step that of the first, without gradients.
        layout: how the results of the first call lie in memory.
        overwrites: paths of results that eager's own next call overwrites.
        noise: the relative difference between two equal eager runs, by path.
        is_random: its results depend on random numbers.
        check: the user's ``check``, if it compares the outputs.
        changed_inputs: paths of the inputs that its first call changes in place.
        compares_updates: of a user's own step what it makes of the parameters is compared, since
            its gradients do not tell what its optimizer does.
    """

    def __init__(
        self,
        target: Target,
        phase: str,
        batches: tuple[Any, Any],
        seed: int,
        notes: list[str],
        tolerance: float | None = None,
        precision: CompileConfig = EAGER,
        is_whole: bool = False,
    ) -> None:
        self.target, self.seed = target, seed
        self.name, self.phase = phase, phase_of(phase)
        self.workload, self.tolerance = batches[0], tolerance
        self._precision, self._is_whole = precision, is_whole
        self.turns = Turns(lambda: self.eager.kept)
        self._scratch: Side | None = None
        self.batches = compared.calls_of(self.phase, *batches)
        self.compares_updates = False
        if phase == STEP and not compared.follows_gradients(self):
            self.compares_updates = True
            self.batches = compared.periods(self, notes)
        self.overwrites: set[str] = set()
        self.changed_inputs: list[str] = []
        self._first_calls = _FIRST_STEPS if self.phase.steps else _FIRST_CALLS
        self._has_nan = False
        # By call: states of torch's generators after it.
        self._left: dict[int, list[bytes]] = {}
        self.eager = self.another_side(precision)
        self.expected = self._observe(self.eager)
        self.check = target.check if "outputs" in self.expected[0] else None
        if self.check and isinstance(self.batches[0], Calls):
            self.check = each_call(self.check)
        self.noise: dict[str, float] = {}
        self._by_itself: dict[int, Movement] = {}  # by inputs
        self.is_random = False
        for index, first, second in self._pairs():
            differences = relative_differences(first, second)
            self.noise = largest(self.noise, differences)
            self._note_move(index, first, second, differences)
            self._demand_that_check_accepts(first, second)
            del first, second  # their gradients are as large as the model
        self._eagers_draws: EagersDraws | None = None
        # By call, and whether it is a first step: the state of a call decides what rounding moves.
        self._movements: dict[tuple[int, bool], Movement] = {}
        self._late_noise = 0.0  # seen after the beginning, and not said yet
        self._why_unknown = ""
        notes += self._about_eager()

    # Sides and calls -------------------------------------------------------------------------------

    def another_side(self, config: CompileConfig = EAGER) -> Side:
        """A side that has made no call."""
        model = self.target.fresh_model(self.name, shares_parameters=config.is_eager)
        whole = self._is_whole
        side = make_side(self.target, self.name, self.batches[0], config, model, whole)
        side.turns = self.turns
        return side

    def another_eager(self) -> Side:
        """An eager side at the precision of the reference that has made no call."""
        return self.another_side(self._precision)

    def scratch(self) -> Side:
        """The same to be used for a moment, in place of the last of these; eager gives back memory."""
        self.eager.release()
        self.drop_scratch()
        self._scratch = self.another_eager()
        return self._scratch

    def drop_scratch(self) -> None:
        """Free the last of these sides; views of it stay."""
        if self._scratch:
            self._scratch.drop()
        self._scratch = None

    def call(self, side: Side, index: int, in_place: bool = False) -> Any:
        """Make call number ``index`` with its seed and its inputs.

        ``in_place``: in the memory of the inputs that the side had last, if they fit.
        """
        inputs = self.batches[index % len(self.batches)]
        side.turns = self.turns
        self.turns.take(side)
        # A copy, since a model may change its inputs in place.
        side.inputs = (
            rewritten(side.inputs, inputs) if in_place else copy_inputs(inputs)
        )
        if self.compares_updates:
            side.before = copies([*side.whole_parameters().values()])
        seed_everything(self.seed + index + here().seed)
        before = random_states()
        output = side.run()
        side.left, side.drew = generator_states(), before != random_states()
        return output

    def first_views(
        self, side: Side, output: Any
    ) -> Iterator[tuple[int, View, list[str]]]:
        """Make the calls after the first one, which has given ``output``.

        Yields the number of each call, its view and the paths of outputs that it has overwritten.
        """
        last: LastResults | None = None
        for index in range(self._first_calls):
            output = self.call(side, index) if index else output
            lost = last.overwritten() if last else []
            view = side.view(output)
            last = LastResults(view)
            yield index, view, lost

    def from_kept(self, side: Side, index: int = 0) -> View:
        """A copy of a side's view of a call from the state that eager has kept."""
        side.begin_anew(self.eager)
        return copy_view(side.view(self.call(side, index)))

    def view(self, index: int = 0) -> View:
        """Eager's view of a call from its kept state.

        Gradients of a training step are its own tensors, which each step makes anew. Those of a
        user's own step are copied: they are a part of the kept state, which is written to them.
        """
        self.eager.begin_anew(self.eager)
        view = self.eager.view(self.call(self.eager, index))
        self._left.setdefault(index, self.eager.left)
        not_copied = CHANGES if self.phase.steps and not self.phase.is_own else ()
        return {**view, **copy_view(without(view, *not_copied))}

    def first_parameters(self) -> dict[str, torch.Tensor]:
        """The parameters that every side begins with, as the target has them."""
        return dict(self.target.model_of(self.name).named_parameters())

    def first_view(self) -> View:
        """Eager's view of its first call, of a step with its gradients, which are not kept."""
        if not self.phase.steps:
            return self.expected[0]
        made = self.scratch()
        view = made.view(self.call(made, 0))
        self.drop_scratch()
        return view

    @contextlib.contextmanager
    def without_kept(self) -> Iterator[None]:
        """Context in which the kept state of a step takes no memory; then it is made again.

        Where eager does not give back its memory, the state stays, and so it does on a GPU, for
        which the host keeps it.
        """
        self.eager.release()
        if self.target.device.type != "cpu" or not self.eager.has_released:
            yield
            return
        self.eager.kept = State()
        try:
            yield
        finally:
            made = self.scratch()
            for index in range(self._first_calls):
                self.call(made, index)
            self.eager.kept = State.of(made)  # no copy, since that side is dropped
            self.drop_scratch()

    def kept(self) -> Side:
        """The eager side in its kept state."""
        self.eager.begin_anew(self.eager)
        return self.eager

    @contextlib.contextmanager
    def with_inputs(self, inputs: Any) -> Iterator[None]:
        """Context in which every call has other inputs, such as those of another size."""
        batches, movements, moves = self.batches, self._movements, self._by_itself
        # A step is compared call by call, a forward pass with the results of several calls.
        wrapped = Sample((inputs,)) if isinstance(batches[0], Calls) else inputs
        self.batches, self._movements, self._by_itself = (wrapped,), {}, {}
        try:
            yield
        finally:
            self.batches, self._movements, self._by_itself = batches, movements, moves
            self.kept()

    @contextlib.contextmanager
    def with_other_weights(self) -> Iterator[dict[str, Any]]:
        """Context in which eager, and the target that may share them, have other weights.

        Gives the state dict that it has before and after.
        """
        model, kept, movements = self.eager.model, self.eager.kept, self._movements
        state = model.state_dict()
        tensors = {name: x for name, x in state.items() if isinstance(x, torch.Tensor)}
        state.update(zip(tensors, copies([*tensors.values()]), strict=True))
        self._movements = {}
        try:
            perturb(model, self.seed)
            self.eager.keep()  # calls start from its new buffers too
            yield state
        finally:
            model.load_state_dict(state)
            self.eager.kept, self._movements = kept, movements
            self.kept()

    # Rounding --------------------------------------------------------------------------------------

    def rounding(self, index: int, notes: list[str], is_first: bool = False) -> Moving:
        """What rounding moves in a call, for :func:`compare`; what it finds out goes to ``notes``.

        ``is_first``: it is a step from the state that all begin with, and not from the kept one.
        Two steps may make gradients a third as long.
        """
        return partial(self._moved_and_noted, index, is_first, notes)

    def _moved_and_noted(
        self, index: int, is_first: bool, notes: list[str], tries: int
    ) -> Movement | None:
        moved = self.moved(index, tries, is_first)
        if moved is None:
            note_unknown(self._why_unknown, notes)
            return None
        if self._late_noise > self.most_noise:
            notes.append(
                f"in a later call eager differs from itself by {self._late_noise:.1g}"
            )
            self._late_noise = 0.0
        if (share := moved.of_gradients) > _MOST_ROUNDING:
            words = "of most only the lengths can be compared"
            if not any(words in note for note in notes):
                notes.append(
                    f"rounding alone moves the gradients by {share:.0%} of themselves in eager's "
                    f"precision, so {words}"
                )
        return moved

    def moved(self, index: int, tries: int, is_first: bool = False) -> Movement | None:
        """How far eager's results of a call move where its operations are rounded otherwise.

        None if it cannot be. Where no random numbers are drawn, calls with the same inputs are the
        same call.
        """
        number = index if self.is_random else index % len(self.batches)
        new = Movement(by_itself=self._by_itself_of(index))
        movement = self._movements.setdefault((number, is_first), new)
        try:
            if not self._why_unknown and movement.tries < tries:
                self._try(number, is_first, tries, movement)
        except Exception as error:
            here().end_all(error)
            self._why_unknown = first_words(error)
        if is_first:
            self.drop_scratch()
        self.kept()
        return None if self._why_unknown else movement

    def _try(self, index: int, is_first: bool, tries: int, movement: Movement) -> None:
        begin = self.scratch if is_first else self.kept
        view = self.first_view() if is_first else self.view(index)
        # A training step makes new gradients; others may write to those that they have.
        want = view if self.name == TRAIN_STEP else copy_view(view)
        for number in range(movement.tries, tries):
            eager = begin()
            # What the user has compiled would be compiled again under the mode, and skipped later.
            stance = torch.compiler.set_stance("force_eager")
            with stance, RoundOtherwise(self.seed + number):
                output = self.call(eager, index)
            movement.add(want, eager.view(output))
        for _ in range(_AGAIN if tries == TRIES[-1] else 0):
            again = self.first_view() if is_first else self.view(index)
            differences = relative_differences(want, again)
            self._late_noise = max(self._late_noise, *differences.values(), 0.0)
            self._note_move(index, want, again, differences)

    def _by_itself_of(self, index: int) -> Movement:
        return self._by_itself.setdefault(index % len(self.batches), Movement())

    def _note_move(
        self, index: int, first: View, second: View, differences: Mapping[str, float]
    ) -> None:
        """Take into account that eager has moved by itself, as on most machines it does not.

        What moves further than ``MOST_NOISE`` would excuse anything.
        """
        if 0 < max(differences.values(), default=0.0) <= MOST_NOISE:
            # Another structure is told by each check.
            with contextlib.suppress(ValueError):
                self._by_itself_of(index).add(first, second)

    # Random numbers --------------------------------------------------------------------------------

    def draws_by_itself(self, side: Side) -> bool:
        """Whether a side draws by a generator of its own: Inductor's kernels do, by seeds."""
        is_inductors = side.config.entry.by_inductor
        return self.is_random and is_inductors and not _inductor().fallback_random

    def may_have_drawn_otherwise(self, side: Side, index: int) -> bool:
        """Whether a side has drawn other random numbers than eager in ``index``, its last call.

        By a generator of its own, or it has left torch's elsewhere than eager does. What leaves
        them where eager does has drawn the same numbers, and has to make the same of them.
        """
        if not self.is_random or self.draws_by_itself(side):
            return self.is_random
        return here().agree(side.left != self._left.get(index, side.left), any)

    def eagers_draws(self) -> EagersDraws:
        """What eager gives over several seeds, which is found once."""
        self._eagers_draws = self._eagers_draws or draws.eagers_draws(self)
        return self._eagers_draws

    def comparable_random_numbers(
        self, side: Side
    ) -> contextlib.AbstractContextManager[Any]:
        """Context in which a side that may draw eager's random numbers draws these."""
        asks = self.is_random and not self.draws_by_itself(side)
        return drawing_as_eager() if asks else contextlib.nullcontext()

    def _depends_on_seed(self, index: int, first: View) -> bool:
        """Whether eager's results depend on random numbers.

        ``first`` is its last view, of the call ``index`` from its kept state.
        """
        if not here().agree(self.eager.drew, any):
            return False
        period = len(self.batches)
        # Few draws, as of stochastic depth, may be the same for some seeds.
        others = (self.view(index + period * n) for n in range(1, draws.SEEDS + 1))
        least = max(1e-6, 10 * self.most_noise)
        found = any(mismatch_scale(first, view) > least for view in others)
        self.kept()
        return found

    # What is known of eager ------------------------------------------------------------------------

    @property
    def free(self) -> tuple[str, ...]:
        """The parts of a view that are not compared, since the user's ``check`` judges them."""
        return ("outputs",) if self.check else ()

    @property
    def most_noise(self) -> float:
        """The largest relative difference between two equal eager runs."""
        return max(self.noise.values(), default=0.0)

    def refusal(self, want: View, got: View) -> str | None:
        """Why the user's ``check`` rejects a view; None without one."""
        if not self.check:
            return None
        pairs = [(want["outputs"], got["outputs"])]
        if here().are_several and self.phase.trains:  # those of each rank
            pairs = list(zip(*pairs[0], strict=True))
        found = (refusal(self.check, expected, actual) for expected, actual in pairs)
        return next(filter(None, found), None)

    def why_incomparable(self) -> str:
        """Why nothing can be compared with eager, or an empty string."""
        has_any = has_number if self.phase.is_own else has_tensor
        is_empty = not self.phase.steps and not any(map(has_any, self.expected))
        if is_empty and not self.check:
            return "the phase returns no tensor, so nothing can be compared"
        free = ("['outputs']",) if self.check else ()
        steady = (e for path, e in self.noise.items() if not path.startswith(free))
        if (unsteady := max(steady, default=0.0)) <= MOST_NOISE:
            return ""
        return (
            f"eager differs from itself by {unsteady:.1g}, so nothing can be compared with it "
            f"({self._why_unsteady()})"
        )

    def _why_unsteady(self) -> str:
        """What a call leaves in the model, which no later call begins without, and what to do."""
        eager = self.kept()
        changing = changing_attributes(eager.model, lambda: self.call(eager, 0))
        self.kept()
        if changing:
            name, kind = changing[0]
            return (
                f"each call changes {name}, a {kind}, which nobody puts back: tune the part of the "
                "model that does not keep it, or a step of your own that resets it"
            )
        return (
            "what a call changes is put back in buffers, numbers and generators of modules, and "
            "get_step() is called anew"
        )

    def _observe(self, side: Side) -> list[View]:
        views: list[View] = []
        for index, view, lost in self.first_views(side, self.call(side, 0)):
            self.overwrites.update(lost)
            self._left[index] = side.left
            if not index:
                self.layout: Layout = layout_of(view)
                self.changed_inputs = _changed(self.batches[0], side.inputs)
            # Of later steps nothing is compared: they are made again from the kept state.
            is_later = self.phase.steps and index
            views.append(copy_view(without(view, *CHANGES) if is_later else view))
            self._has_nan = self._has_nan or has_nan(views[-1])
        return views

    def _pairs(self) -> Iterator[tuple[int, View, View]]:
        """Calls, and eager's views of each in two runs; keeps the state for later calls.

        When the last of them have been compared, they tell whether results depend on the seed.
        """
        if not self.phase.steps:
            new = self._observe(self.another_eager())
            yield from zip(range(_FIRST_CALLS), self.expected, new, strict=True)
            self.eager.keep()
            yield from self._last_pair(0)
            return
        self.eager.keep()
        again = self.scratch()
        first = self.expected[0]
        # Later steps are made again from the kept state, and the first by ``first_view``.
        self.expected = [without(first, *CHANGES)]
        handed = [first]  # over, since what is named here lives until the next pair
        del first
        yield 0, handed.pop(), again.view(self.call(again, 0))
        self.drop_scratch()
        yield from self._last_pair(1)
        self.kept()

    def _last_pair(self, index: int) -> Iterator[tuple[int, View, View]]:
        first = self.from_kept(self.eager, index)
        yield index, first, self.view(index)
        self.is_random = self._depends_on_seed(index, first)

    def _demand_that_check_accepts(self, first: View, second: View) -> None:
        if problem := self.refusal(first, second):
            raise TargetError(
                "the target's check() rejects a second run of eager mode",
                problem,
                "check(expected, actual) gets the outputs of the same call",
            )

    def _about_eager(self) -> Iterator[str]:
        """Sentences for the user on how settings are compared."""
        if self.check:
            yield "outputs are compared by the target's check()"
        for kind in sorted(opaque_types(self.expected[0])):
            yield f"the outputs hold {kind}, of which only the type is compared"
        if self.tolerance is not None:
            yield f"outputs may be off by {self.tolerance:g} (the requested tolerance)"
        if 0 < self.most_noise <= MOST_NOISE:  # beyond that nothing is compared
            yield f"eager differs from itself by {self.most_noise:.1g}; tolerances allow for it"
        if self._has_nan:
            yield "eager's output holds NaN; compiled may hold it in the same places"
        if self.changed_inputs:
            yield (
                f"a call changes its inputs in place ({self.changed_inputs[0]}), and timed calls "
                "get what those before them have made of them"
            )
        if self.is_random:
            yield (
                "this phase draws random numbers: what draws others than eager is compared by how "
                "its results are distributed, and by whether its gradients are the slope of its loss"
            )


@dataclass
class Subject:
    """A side that is checked.

    Attributes:
        first: the output of its first call, which was call 0 of the reference.
        notes: gets sentences for the user.
        accepted: error by path that counts as none: eager's noise, or that of the first calls.
        is_judged_finely: by what rounding moves, wherever it is off by more than the tolerance.
        draws_otherwise: in a call its results were not eager's, and other random numbers may be why.
    """

    side: Side
    first: Any
    notes: list[str]
    accepted: dict[str, float] = field(default_factory=dict)
    is_judged_finely: bool = True
    draws_otherwise: bool = False
    _repeats: View = field(default_factory=dict)  # with draws of its own, for one seed

    def restless(self) -> set[str]:
        """Paths of the values that differ between calls regardless of the weights."""
        return {path for path, error in self.accepted.items() if error > MOST_NOISE}

    def note(self, words: str) -> None:
        """Say something once."""
        if words not in self.notes:
            self.notes.append(words)


def _changed(before: Any, after: Any) -> list[str]:
    """Paths of plain tensors whose numbers are others, or lie in another form."""
    old, changed = tensors_by_path(before), []
    for path, x in tensors_by_path(after).items():
        if path in old and x.layout is torch.strided and not x.is_quantized:
            same = x.shape == old[path].shape and x.dtype == old[path].dtype
            # A NaN is no change.
            if not same or bool(((x != old[path]) & (x == x)).any()):
                changed.append(path)
    return changed


def nothing_moves(tries: int) -> Movement:
    """Where nothing is rounding, as of random numbers: what rounding moves, for :func:`compare`."""
    return Movement()


def note_unknown(why: str, notes: list[str]) -> None:
    """Say once that nothing tells rounding from errors, and why."""
    note = (
        "how far rounding moves the results is not known, since eager cannot be rounded otherwise "
        f"here ({why}), so errors of up to ten times the tolerance (5 % of a gradient) are taken "
        "for it"
    )
    if note not in notes:
        notes.append(note)


def _inductor() -> Any:
    return importlib.import_module("torch._inductor.config")


def drawing_as_eager() -> contextlib.AbstractContextManager[Any]:
    """Context in which Inductor compiles and runs code that draws eager's random numbers."""
    context: contextlib.AbstractContextManager[Any] = _inductor().patch(
        fallback_random=True
    )
    return context
