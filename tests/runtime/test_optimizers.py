"""The implementation of an optimizer's step in what programs do with optimizers."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autocompile.errors import UsageError
from autocompile.runtime.applying import apply_config, apply_to_optimizer
from autocompile.runtime.optimizers import implementations
from autocompile.settings.config import EAGER, CompileConfig

pytestmark = pytest.mark.usefixtures("_dynamo_as_it_was")

FUSED = CompileConfig("eager", optimizer="fused")
FOR_LOOP = CompileConfig("eager", optimizer="for_loop")
TENSOR_LR = CompileConfig("eager", optimizer="tensor_lr")
COMPILED = CompileConfig("aot_eager", optimizer="fused")
LAID_OUT = CompileConfig("eager", memory_format="channels_last", optimizer="fused")


def one(**given: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([nn.Parameter(torch.ones(2, 3))], lr=0.1, **given)


@pytest.mark.parametrize("after", ["fused", "for_loop"])
def test_an_implementation_does_not_build_on_the_one_before(after: str) -> None:
    optimizer = one()
    apply_to_optimizer(optimizer, TENSOR_LR)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
    apply_to_optimizer(optimizer, CompileConfig("eager", optimizer=after))
    lr = optimizer.param_groups[0]["lr"]
    assert isinstance(lr, float) and lr == pytest.approx(0.1)  # it was in float32
    apply_to_optimizer(optimizer, TENSOR_LR)
    flags = {k: optimizer.param_groups[0][k] for k in ("fused", "foreach")}
    assert flags == {"fused": None, "foreach": None}


def test_a_learning_rate_that_was_a_tensor_stays_one() -> None:
    lr = torch.tensor(0.1)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=lr)
    for config in (TENSOR_LR, FOR_LOOP, EAGER):
        apply_to_optimizer(optimizer, config)
        assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)


def sliced() -> tuple[torch.Tensor, nn.Parameter]:
    whole = torch.ones(4, 6)
    return whole, nn.Parameter(whole[:, :3])


def test_a_parameter_that_is_a_slice_is_refused_by_a_fused_step() -> None:
    """Fused kernels of a CPU write over the values between those of a slice."""
    whole, p = sliced()
    optimizer = torch.optim.Adam([p], lr=0.1)
    with pytest.raises(UsageError, match="slice of another tensor"):
        apply_to_optimizer(optimizer, FUSED)
    assert "fused" not in implementations(optimizer)
    assert not optimizer.param_groups[0]["fused"]
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert (whole[:, 3:] == 1).all() and (whole[:, :3] != 1).all()


@pytest.mark.parametrize("config", [FUSED, COMPILED])
def test_a_slice_that_is_added_later_is_refused_too(config: CompileConfig) -> None:
    optimizer, (whole, p) = one(), sliced()
    apply_to_optimizer(optimizer, config)
    optimizer.add_param_group({"params": [p]})
    p.grad = torch.ones_like(p)
    with pytest.raises(UsageError, match="slice of another tensor"):
        optimizer.step()
    assert (whole == 1).all()


def test_a_transposed_parameter_is_no_slice() -> None:
    results = []
    for config in (EAGER, FUSED):
        drawn = torch.Generator().manual_seed(0)
        p = nn.Parameter(torch.randn(4, 6, generator=drawn).t())
        optimizer = torch.optim.Adam([p], lr=0.1)
        apply_to_optimizer(optimizer, config)
        for _ in range(3):
            p.grad = torch.randn(6, 4, generator=drawn)
            optimizer.step()
        results.append(p.detach())
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))]
)
@pytest.mark.parametrize("config", [FUSED, COMPILED, TENSOR_LR, FOR_LOOP])
def test_a_copy_of_an_optimizer_is_untuned(config: CompileConfig, way: Any) -> None:
    usual, optimizer = one(), one()
    apply_to_optimizer(optimizer, config)
    p = optimizer.param_groups[0]["params"][0]
    p.grad = torch.ones_like(p)
    optimizer.step()
    copied = way(optimizer)
    flags = {k: v for k, v in copied.param_groups[0].items() if k != "params"}
    lr = flags.pop("lr")
    assert isinstance(lr, float) and lr == pytest.approx(0.1)
    assert flags == {k: usual.param_groups[0][k] for k in flags}
    assert copied.defaults == usual.defaults
    assert not getattr(copied, "_step_supports_amp_scaling", False)
    assert not [name for name in vars(copied) if name.startswith("_autocompile")]
    apply_to_optimizer(copied, config)  # and may be tuned again
    for each in (copied, optimizer):
        weight = each.param_groups[0]["params"][0]
        weight.grad = torch.full_like(weight, 0.5)
        each.step()
    torch.testing.assert_close(copied.param_groups[0]["params"][0], p)


def test_a_gradient_that_is_assigned_transposed_is_that_of_each_weight() -> None:
    """A CPU's fused kernel takes its memory as it lies (torch 2.13)."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.ones(8, 8)) for _ in range(2)]
    optimizers = [torch.optim.Adam([p], lr=0.1) for p in weights]
    apply_to_optimizer(optimizers[1], FUSED)
    for _ in range(3):
        gradient = torch.randn(8, 8).t()
        for p, optimizer in zip(weights, optimizers, strict=True):
            p.grad = gradient
            optimizer.step()
    assert torch.allclose(*weights)


def test_a_copy_of_an_optimizer_that_was_fused_before_is_fused() -> None:
    optimizer = one(fused=True)
    apply_to_optimizer(optimizer, FOR_LOOP)
    assert copy.deepcopy(optimizer).param_groups[0]["fused"] is True


class AllOfIt(torch.optim.SGD):
    """Gives copies all that it has."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def test_an_own_way_of_being_copied_is_kept() -> None:
    optimizer = AllOfIt([nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.mine = 3  # type: ignore[attr-defined]
    apply_to_optimizer(optimizer, COMPILED)
    copied: Any = pickle.loads(pickle.dumps(optimizer))
    assert copied.mine == 3 and not copied.param_groups[0]["fused"]
    assert "step" not in vars(copied)


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("as_keyword", [False, True])
@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_that_a_closure_makes_fit_a_fused_step(
    backend: str, is_applied: bool, as_keyword: bool
) -> None:
    """Also those of a program whose own optimizer is fused, once weights are laid out anew."""
    results = []
    for is_tuned in (False, True):
        model, drawn = conv(), torch.Generator().manual_seed(1)
        optimizer = torch.optim.Adam(
            model.parameters(), lr=1e-2, fused=not is_applied and is_tuned
        )
        config = CompileConfig(
            backend, memory_format="channels_last", optimizer="fused"
        )
        if is_tuned:
            apply_config(model, "train_step", config, [optimizer] * is_applied)

        def closure(model: Any = model, drawn: Any = drawn) -> torch.Tensor:
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=drawn)
            return torch.zeros(())

        for _ in range(3):
            if as_keyword:
                assert optimizer.step(closure=closure) == 0
            else:
                assert optimizer.step(closure) == 0
        results.append([p.detach().contiguous() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])


def scaled(config: CompileConfig, clips: bool, make: Any, overflows: bool) -> Any:
    """The weights after steps under float16 with a scaler, as torch's documents write them."""
    model = conv()
    optimizer = make(model.parameters())
    apply_config(model, "train_step", config, [optimizer])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    drawn, scales = torch.Generator().manual_seed(1), []
    for number in range(8):
        x = torch.randn(4, 3, 4, 4, generator=drawn)
        with torch.autocast("cpu", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        if overflows and number == 2:
            next(iter(model.parameters())).grad.fill_(torch.inf)
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return [p.detach().contiguous() for p in model.parameters()], scales


MAKE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("overflows", [False, True])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", MAKE)
def test_a_scaler_works_with_a_fused_step_clipped_or_not(
    kind: str, backend: str, clips: bool, overflows: bool
) -> None:
    """A step whose gradients are infinite is left out, by the same scales."""
    want, scales = scaled(EAGER, clips, MAKE[kind], overflows)
    config = CompileConfig(backend, optimizer="fused")
    got, found = scaled(config, clips, MAKE[kind], overflows)
    assert found == scales and (len(set(scales)) > 1)
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-4)  # of float16 gradients


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("config", [EAGER, FUSED])
def test_a_model_that_is_converted_goes_on(config: CompileConfig, kind: str) -> None:
    """As ``load_state_dict`` does, moments get the dtype of the weights."""
    model = conv()
    optimizer = MAKE[kind](model.parameters())
    apply_config(model, "train_step", config, [optimizer])
    x = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in (torch.float32, torch.float64):
            model.to(dtype)
            if config == EAGER and dtype == torch.float64:
                optimizer.load_state_dict(optimizer.state_dict())
            for _ in range(2):
                optimizer.zero_grad()
                model(x.to(dtype)).square().sum().backward()
                optimizer.step()
    moments = [
        kept
        for state in optimizer.state.values()
        for kept in state.values()
        if kept.dim()
    ]
    assert {kept.dtype for kept in moments} == {torch.float64}


class Precise(torch.optim.SGD):
    """Keeps moments in float32 beside weights in bfloat16, in a kernel of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("sum", torch.zeros(p.shape))
                p.sub_(group["lr"] * kept.add_(p.grad.float()))


def test_moments_of_an_optimizer_that_is_not_ours_stay_as_they_are() -> None:
    apply_to_optimizer(one(), FUSED)  # what looks at fused steps is of all optimizers
    p = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = Precise([p], lr=0.1, fused=True)
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert optimizer.state[p]["sum"].dtype == torch.float32


def test_a_step_beside_a_thread_that_compiles_is_right() -> None:
    """While any thread compiles, ``torch.compiler.is_compiling()`` is true in all of them."""

    def steps(config: CompileConfig, step: Callable[..., None]) -> Any:
        model = conv()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        apply_config(model, "train_step", config, [optimizer])
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
        step(optimizer)
        return [p.detach().contiguous() for p in model.parameters()]

    def within_a_compile(optimizer: torch.optim.Optimizer) -> None:
        def backend(graph: Any, _: Any) -> Any:
            thread = threading.Thread(target=optimizer.step)
            thread.start()
            thread.join()
            return graph.forward

        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))

    want = steps(EAGER, lambda optimizer: optimizer.step())
    torch.testing.assert_close(steps(LAID_OUT, within_a_compile), want)


def test_an_optimizer_that_is_dropped_gives_back_its_moments_at_once() -> None:
    """On a GPU they are twice the model, and Python may look for circles much later."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    apply_to_optimizer(optimizer, CompileConfig("eager", optimizer="fused"))
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    moments = weakref.ref(optimizer.state[model.weight]["exp_avg"])
    gc.disable()
    try:
        del optimizer
        assert moments() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("setting", ["compiled", "tensor_lr", "whole step"])
def test_a_warm_up_from_zero_trains_as_in_eager_mode(setting: str) -> None:
    """torch's compiled Adam divides by the rate: rows without a gradient so far became NaN."""
    results = []
    for is_tuned in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(
            x: torch.Tensor, model: Any = model, optimizer: Any = optimizer
        ) -> Any:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        if is_tuned and setting == "whole step":
            whole = CompileConfig("aot_eager", scope="step")
            step = apply_config(step, "train_step", whole, [optimizer])
        elif is_tuned:
            how = "default" if setting == "compiled" else setting
            config = CompileConfig("aot_eager", optimizer=how)
            apply_to_optimizer(optimizer, config)
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / 4)
        for number in range(6):
            step(torch.arange(number % 3, number % 3 + 2))
            warm_up.step()
        results.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])
