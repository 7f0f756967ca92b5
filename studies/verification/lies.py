"""The models that are lied about, and a Dynamo backend for each lie.

Each backend runs Dynamo's graph in eager mode, which is right to the last bit, and then does one
thing wrong. A lie that finds nothing to lie about raises, so that it cannot pass as honest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from catalogue import CONTROL, LIARS, SIZES
from torch import nn
from torch._dynamo import register_backend

Tensor = torch.Tensor
Change = Callable[[Tensor], Tensor]

# The models -----------------------------------------------------------------------------

BATCH, TOKENS, WIDTH = 4, 575, 64  # 4 x 575 = 2,300 rows
ROWS, CLASSES, LABELS, CODES = BATCH * TOKENS, 100, 1000, 10
VOCABULARY, HEADS = 500, 10


class Block(nn.Module):
    """Attention and two linear layers, with what they are added to."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            self.qkv(self.before(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        )
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(
            self.narrow(nn.functional.gelu(self.wide(self.after(x))))
        )


class Answers(nn.Module):
    """Rows, positions, classes and labels; it also writes to an input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.rows, self.positions = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.classes = nn.Linear(WIDTH, CLASSES)
        self.codes = nn.Parameter(torch.eye(CODES, 32))

    def forward(self, x: Tensor, codes: Tensor, store: Tensor) -> dict[str, Tensor]:
        x = self.blocks(x.to(self.codes.dtype))
        rows = self.rows(x)
        store[:, :100] = rows[:, :100, :8].to(store.dtype)
        return {
            "rows": rows.flatten(0, 1),  # [2300, 64]
            "positions": self.positions(x),  # [4, 575, 64]
            "classes": self.classes(x[:, :16].flatten(0, 1)),  # [64, 100]
            # The codes are far apart, so no rounding changes a label.
            "labels": (codes.to(self.codes.dtype) @ self.codes.T).argmax(-1),  # [1000]
        }


class Store:
    """A cache of keys, as a plain object that no library has registered."""

    def __init__(self) -> None:
        self.keys = torch.zeros(BATCH, 64, WIDTH)


class Caching(nn.Module):
    """Writes keys to an object that is an input, and returns what it makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.key = Block(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, store: Store) -> Tensor:
        x = self.block(x.to(self.key.weight.dtype))
        keys = self.key(x)
        store.keys[:, :32] = keys.to(store.keys.dtype)
        return x + keys


class Training(nn.Module):
    """A classifier of sentences: an embedding, two blocks with dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(Block(0.1), Block(0.1))
        self.head = nn.Linear(WIDTH, HEADS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Logits ``[sentences, classes]``; ``labels`` are for the loss."""
        return self.head(self.blocks(self.words(tokens)).mean(1))


MODELS = {
    "answers": Answers,
    "cache": Caching,
    "training": Training,
    "stepping": Training,
}


def get_model() -> nn.Module:
    """The model that ``VERIFICATION_TARGET`` names, in bfloat16 if it ends so."""
    name, _, low = os.environ["VERIFICATION_TARGET"].partition("_")
    model = MODELS[name]()
    return model.bfloat16() if low else model


def get_inputs() -> Any:
    name, _, _ = os.environ["VERIFICATION_TARGET"].partition("_")
    if name == "answers":
        codes = 10 * torch.eye(CODES, 32)[torch.randint(CODES, (LABELS,))]
        return {
            "x": torch.randn(BATCH, TOKENS, WIDTH),
            "codes": codes + 0.1 * torch.randn(LABELS, 32),
            "store": torch.zeros(BATCH, TOKENS, 8),
        }
    if name == "cache":
        return {"x": torch.randn(BATCH, 32, WIDTH), "store": Store()}
    return {
        "tokens": torch.randint(VOCABULARY, (16, 40)),
        "labels": torch.randint(HEADS, (16,)),
    }


def get_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    rate, decay = RATES[next(model.parameters()).dtype]
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)


def get_loss(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), inputs["labels"])


# Learning rate and weight decay. In bfloat16 a step has to be larger, or rounding undoes it.
RATES = {torch.float32: (1e-3, 0.1), torch.bfloat16: (1e-2, 0.5)}

# The lies -------------------------------------------------------------------------------

_registered: list[str] = []


def lie(name: str, backend: Callable[..., Any]) -> None:
    register_backend(backend, name=name)
    _registered.append(name)


def some_is(found: bool) -> None:
    if not found:
        raise RuntimeError("this lie has nothing to lie about in this graph")


def of_output(name: str, shape: tuple[int, ...], change: Change) -> None:
    """A backend that changes the outputs of this shape."""

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            outputs = graph(*args)
            is_it = [isinstance(x, Tensor) and x.shape == shape for x in outputs]
            some_is(any(is_it))
            return tuple(
                change(x) if it else x for x, it in zip(outputs, is_it, strict=True)
            )

        return run

    lie(name, backend)


def garbage(x: Tensor) -> Tensor:
    return torch.randn_like(x) * x.float().square().mean().sqrt().to(x.dtype)


def at(place: Any, change: Change) -> Change:
    """What changes a copy of a tensor at one place."""

    def changed(x: Tensor) -> Tensor:
        x = x.clone()
        x[place] = change(x[place])
        return x

    return changed


def swapped(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, [3, 7]] = x[:, [7, 3]]
    return x


def flipped(labels: Tensor) -> Tensor:
    return (labels + 1) % CODES


def laid_out_otherwise(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def in_one_memory() -> Change:
    kept: list[Tensor] = []

    def change(x: Tensor) -> Tensor:
        if not kept:
            kept.append(torch.empty_like(x))
        return kept[0].copy_(x)

    return change


def not_written(shape: tuple[int, ...]) -> Callable[..., Any]:
    """A backend that gives the graph a copy of the inputs of this shape."""

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            is_it = [isinstance(x, Tensor) and x.shape == shape for x in args]
            some_is(any(is_it))
            return graph(
                *(x.clone() if it else x for x, it in zip(args, is_it, strict=True))
            )

        return run

    return backend


def bigger(size: float) -> Change:
    return lambda x: x * (1 + size)


def everything_bigger(size: float) -> Callable[..., Any]:
    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(
            x * (1 + size) if isinstance(x, Tensor) and x.is_floating_point() else x
            for x in graph(*args)
        )

    return backend


class Altered(torch.autograd.Function):
    """The same tensor, whose gradient is changed on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradient), None


def of_gradient(
    name: str, changes: Callable[[], Change], shape: tuple[int, ...] | None = None
) -> None:
    """A backend that changes the gradients of all parameters, or of the first of this shape."""

    def backend(graph: Any, inputs: Any) -> Any:
        each = [changes() for _ in inputs]

        def run(*args: Any) -> Any:
            places = [
                n
                for n, x in enumerate(args)
                if isinstance(x, nn.Parameter) and shape in (None, tuple(x.shape))
            ]
            some_is(bool(places))
            if not torch.is_grad_enabled():
                return graph(*args)
            given = list(args)
            for n in places if shape is None else places[:1]:
                given[n] = Altered.apply(args[n], each[n])
            return graph(*given)

        return run

    lie(name, backend)


def delayed() -> Change:
    """What gives the gradient of the call before."""
    kept: list[Tensor] = []

    def change(gradient: Tensor) -> Tensor:
        kept.append(gradient.clone())
        return kept.pop(0) if len(kept) > 1 else gradient

    return change


def on_largest_row(change: Change) -> Change:
    """A change of the row of an embedding's gradient that is the largest."""

    def changed(gradient: Tensor) -> Tensor:
        return at(gradient.float().norm(dim=1).argmax(), change)(gradient)

    return changed


def missing(graph: Any, inputs: Any) -> Any:
    shape = (HEADS, WIDTH)

    def run(*args: Any) -> Any:
        is_it = [isinstance(x, nn.Parameter) and x.shape == shape for x in args]
        some_is(any(is_it))
        return graph(
            *(x.detach() if it else x for x, it in zip(args, is_it, strict=True))
        )

    return run


def masks_anew(graph: Any, inputs: Any) -> Any:
    """The loss of one draw of masks, with the gradients of another."""

    def run(*args: Any) -> Any:
        first, second = graph(*args), graph(*args)
        return tuple(b + (a - b).detach() for a, b in zip(first, second, strict=True))

    return run


def held_by(graph: nn.Module, args: Any) -> list[Tensor]:
    """Tensors that a graph works on: its inputs, and an optimizer's own, which are attributes."""
    given = [x for x in args if isinstance(x, Tensor)]
    return [*given, *graph.parameters(), *graph.buffers()]


def of_step(name: str, change: Callable[[list[Tensor], list[Tensor]], None]) -> None:
    """A backend that changes parameters after an optimizer's step, in place.

    ``change`` gets the parameters as they are now, and as they were.
    """

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            now = [x for x in held_by(graph, args) if isinstance(x, nn.Parameter)]
            some_is(bool(now))
            before = [x.detach().clone() for x in now]
            result = graph(*args)
            with torch.no_grad():
                right = [x.clone() for x in now]
                change(now, before)
                # A lie that is lost in rounding is none.
                pairs = zip(now, right, strict=True)
                some_is(any(not torch.equal(*pair) for pair in pairs))
            return result

        return run

    lie(name, backend)


def at_rate(factor: float) -> Callable[[list[Tensor], list[Tensor]], None]:
    def change(now: list[Tensor], before: list[Tensor]) -> None:
        for p, old in zip(now, before, strict=True):
            p.copy_(old + factor * (p - old))

    return change


def with_decay(factor: float) -> Callable[[list[Tensor], list[Tensor]], None]:
    """As if the weight decay had been so many times as large."""

    def change(now: list[Tensor], before: list[Tensor]) -> None:
        for p, old in zip(now, before, strict=True):
            rate, decay = RATES[p.dtype]
            p.sub_(rate * decay * (factor - 1) * old)

    return change


def skipping(which: Callable[..., int]) -> Callable[[list[Tensor], list[Tensor]], None]:
    def change(now: list[Tensor], before: list[Tensor]) -> None:
        place = which(range(len(now)), key=lambda n: now[n].numel())
        now[place].copy_(before[place])

    return change


def with_another_eps(graph: Any, inputs: Any) -> Any:
    found = 0
    for node in graph.graph.nodes:
        if 1e-8 in node.args:
            found += 1
            node.args = tuple(1e-4 if x == 1e-8 else x for x in node.args)
    some_is(found > 0)
    graph.recompile()
    return graph.forward


def counting_twice(graph: Any, inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        counts = [x for x in held_by(graph, args) if x.dim() == 0]
        some_is(bool(counts))
        for count in counts:
            count += 1
        return graph(*args)

    return run


lie(CONTROL, lambda graph, inputs: graph.forward)
of_output("row_zeroed", (ROWS, WIDTH), at(1234, torch.zeros_like))
of_output("row_garbage", (ROWS, WIDTH), at(1234, garbage))
of_output("position_garbage", (BATCH, TOKENS, WIDTH), at((2, 300), garbage))
of_output("class_zeroed", (64, CLASSES), at((slice(None), 3), torch.zeros_like))
of_output("class_swapped", (64, CLASSES), swapped)
of_output("label_flipped", (LABELS,), at(123, flipped))
of_output("alias", (ROWS, WIDTH), in_one_memory())
of_output("stride", (BATCH, TOKENS, WIDTH), laid_out_otherwise)
lie("write_dropped", not_written((BATCH, TOKENS, 8)))
lie("cache_write_dropped", not_written((BATCH, 64, WIDTH)))
of_gradient("gradient_1.01", lambda: bigger(0.01))
of_gradient("gradient_1.02", lambda: bigger(0.02))
of_gradient("gradient_1.05", lambda: bigger(0.05))
of_gradient("gradient_zero", lambda: torch.zeros_like)
lie("gradient_missing", missing)
of_gradient("gradient_before", delayed)
lie("masks_anew", masks_anew)
WORDS = (VOCABULARY, WIDTH)
of_gradient("embedding_row_zeroed", lambda: on_largest_row(torch.zeros_like), WORDS)
of_gradient("embedding_row_garbage", lambda: on_largest_row(garbage), WORDS)
of_gradient("class_gradient_zeroed", lambda: at(3, torch.zeros_like), (HEADS, WIDTH))
of_step("rate_1.02", at_rate(1.02))
of_step("rate_1.1", at_rate(1.1))
of_step("rate_2", at_rate(2.0))
of_step("decay_dropped", with_decay(0.0))
of_step("decay_doubled", with_decay(2.0))
lie("eps", with_another_eps)
lie("step_count", counting_twice)
of_step("largest_skipped", skipping(max))
of_step("smallest_skipped", skipping(min))
for size in SIZES:
    lie(f"outputs_all_{size:g}", everything_bigger(size))
    of_output(f"outputs_row_{size:g}", (ROWS, WIDTH), at(1234, bigger(size)))
    of_gradient(f"gradient_all_{size:g}", lambda size=size: bigger(size))
    of_gradient(f"gradient_one_{size:g}", lambda size=size: bigger(size), (256, WIDTH))
    of_gradient(
        f"gradient_row_{size:g}",
        lambda size=size: on_largest_row(bigger(size)),
        WORDS,
    )
_named = {name for each in LIARS.values() for name in each.backends()}
assert {*_registered} == _named, {*_registered} ^ _named
