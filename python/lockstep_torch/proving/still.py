"""Random numbers that do not depend on how samples are dealt to ranks: dropout drops nothing, BatchNorm goes by its
running statistics, a sample's own randomness goes by its position, and what a step draws is the same in each row."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.data._utils.fetch
from torch import nn

DROPS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
LOOSE = ("randperm", "multinomial", "normal", "poisson")  # that are not made neutral
DRAWS = ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli")
FILLS = ("normal_", "uniform_", "exponential_", "bernoulli_", "random_")
# Torch's that draw seeds, orders and first weights, and no samples.
OWN = (os.path.join(os.path.dirname(torch.utils.data.__file__), ""), torch.nn.init.__file__)
SAMPLER = torch.utils.data.sampler.__file__
DROPOUT = "dropout drops nothing"
NORMALIZES = "BatchNorm goes by its running statistics"
ROW = 4096
FEW = 64  # numbers that say which draw it was
SAMPLES = "a sample's random numbers go by its position in the data set"


class Draws:
    """Where this process draws random numbers, and between which updates."""

    def __init__(self, folder: str) -> None:
        self.notes: set[str] = set()  # what is neutral
        self.sites: dict[str, set[int]] = {}  # lines that draw: how many updates had been made
        self.updates = 0
        self.loose: set[str] = set()  # lines whose draws are not made neutral
        self.drawn_now: list[tuple[str, int]] = []  # where what was drawn, as a hash
        self.drawn_before: list[tuple[str, int]] = []  # between the last two updates, with other generators' states
        self.states: dict[str, int] = {}  # of generators other than torch's, when they were looked at last
        self.made: collections.deque[tuple[str, Any]] = collections.deque(maxlen=64)  # such, and how each says its own
        self.folder = folder  # another copy in each run
        self.neutral: frozenset[str] = frozenset()  # lines whose draws are the same in each row
        self.neutralizes = False
        self.orders: set[str] = set()  # generators without an owner that drew an order
        self.seeded: set[str] = set()  # those that the program seeded

    def unseeded(self) -> set[str]:
        """Each start of the program draws other orders by them."""
        return (self.orders | ({"random", "numpy.random"} & self.sites.keys())) - self.seeded

    def drawn(self, what: str) -> None:
        self.notes.add(what)

    def draws_at(self, options: dict[str, Any]) -> str:
        """The line of the program, or of a library other than torch, that draws. A generator of a step's own does not
        count: what it draws was seeded there, as by the sample."""
        frame: Any = sys._getframe(2)
        file = frame.f_code.co_filename
        site = f"{file.removeprefix(self.folder)}:{frame.f_lineno}"
        if not file.startswith(OWN):
            dice = options.get("generator")
            used = {self.updates} if dice is None else getattr(dice, "updates", {self.updates})
            used.add(self.updates)
            if dice is None or len(used) > 1:
                self.sites.setdefault(site, set()).update(used)
        return site

    def each_step(self, optimizers: int) -> set[str]:
        """Lines that draw before two updates in a row, or two of one optimizer, where several take turns."""
        return {site for site, updates in self.sites.items()
                if any(number + by in updates for number in updates for by in range(1, optimizers + 1))}

    def states_now(self) -> dict[str, int]:
        numpy: Any = sys.modules.get("numpy")
        found = {"random": hash(random.getstate()),
                 "numpy.random": hash(numpy.random.get_state()[1].tobytes()) if numpy else 0}
        for name, state in self.made:
            found[name] = hash((found.get(name), repr(state())))
        return found

    def look(self) -> None:
        """Which of them were used."""
        states = self.states_now()
        for name, state in states.items():
            if self.states and self.states.get(name) != state:
                self.sites.setdefault(name, set()).add(self.updates)
                self.loose.add(name)
                self.drawn_now.append((name, state))
        self.states = states

    def update_begins(self) -> None:
        self.look()
        self.updates += 1
        self.drawn_before, self.drawn_now = self.drawn_now, []

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What a loader draws for its batches is seen in them."""
        self.look()
        before, self.drawn_now = self.drawn_now, []
        yield
        self.states, self.drawn_now = self.states_now(), before

    def left(self, site: str, result: torch.Tensor) -> None:
        """A line draws what is not made neutral."""
        if self.neutralizes and not site.startswith(OWN):
            self.sites.setdefault(site, set()).add(self.updates)
            self.loose.add(site)
            self.drawn_now.append((site, zlib.crc32(repr(result.reshape(-1)[:FEW].tolist()).encode())))

    def is_neutral(self, site: str) -> bool:
        return self.neutralizes and site in self.neutral


def fixed(shape: tuple[int, ...], salt: str) -> torch.Generator:
    return torch._C.Generator().manual_seed(zlib.crc32(repr((shape, salt)).encode()))


def same_rows(like: torch.Tensor, name: str, fill: Any) -> torch.Tensor:
    """Random along its last dimension only: any other may be the samples'. A shorter row is the begin of a longer."""
    length = like.shape[-1] if like.dim() > 1 else 1
    row = torch.empty((length // ROW + 1) * ROW, dtype=like.dtype, device="cpu")
    fill(row, fixed((), name))
    row = row.to(like.device)
    return row[:length].expand_as(like) if like.dim() > 1 else row[0].expand_as(like)


def whether(arguments: tuple[Any, ...], like: torch.Tensor) -> torch.Tensor:
    """As torch.bernoulli: 1 with the probability that is given there."""
    given: torch.Tensor = arguments[0]
    return (same_rows(given, "bernoulli", uniform) < given).to(like.dtype)


def uniform(row: torch.Tensor, dice: torch.Generator) -> None:
    ORIGINAL["uniform_"](row, generator=dice)


def range_of(arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int]:
    """Of a randint."""
    numbers = [each for each in arguments if isinstance(each, int)]
    low, high = [0, *numbers][-2:] if len(numbers) < 2 else numbers[:2]
    return options.get("low", low), options.get("high", high)


def refill(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """How a row is filled as `name` fills its tensor."""
    if name.startswith("randint"):
        low, high = range_of(arguments, options)
        return lambda row, dice: ORIGINAL["random_"](row, low, high, generator=dice)
    return lambda row, dice: ORIGINAL["normal_" if "randn" in name else "uniform_"](row, generator=dice)


ORIGINAL = {name: getattr(torch.Tensor, name) for name in FILLS}


def wrap_draw(draws: Draws, name: str) -> None:
    original = getattr(torch, name)

    @functools.wraps(original)
    def draw(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)  # the generator moves on as it would
        if not isinstance(result, torch.Tensor):
            return result
        site = draws.draws_at(options)
        if not draws.is_neutral(site):
            draws.left(site, result)
            return result
        if name.startswith("randint"):  # from a range, which may be as long as the batch
            draws.loose.add(site)
            draws.drawn_now.append((site, zlib.crc32(repr(range_of(arguments, options)).encode())))
        with torch.no_grad():
            result.copy_(whether(arguments, result) if name == "bernoulli" else
                         same_rows(result, name, refill(name, arguments, options)))
        return result
    setattr(torch, name, draw)


def wrap_fill(draws: Draws, name: str) -> None:
    original = ORIGINAL[name]

    @functools.wraps(original)
    def fill(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        original(tensor, *arguments, **options)
        site = draws.draws_at(options)
        if site.startswith(SAMPLER) and options.get("generator") is None:
            draws.orders.add("torch")
        if not draws.is_neutral(site):
            draws.left(site, tensor)
        else:
            given = {key: value for key, value in options.items() if key != "generator"}
            row = same_rows(tensor, name, lambda row, dice: original(row, *arguments, **given, generator=dice))
            with torch.no_grad():
                tensor.copy_(row)
        return tensor
    setattr(torch.Tensor, name, fill)


def keep_all(draws: Draws) -> None:
    """Each dropout returns what it is given."""
    for name in DROPS:
        def passes(tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if training and p > 0:
                draws.drawn(DROPOUT)
            return tensor
        setattr(nn.functional, name, passes)

    def dropout(tensor: Any, p: float, train: bool) -> Any:
        if train and p > 0:
            draws.drawn(DROPOUT)
        return tensor
    torch.dropout = dropout  # type: ignore[assignment]
    functional: Any = nn.functional
    original = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *more: Any,
                  **options: Any) -> Any:
        if dropout_p > 0:
            draws.drawn(DROPOUT)
        return original(query, key, value, attn_mask, 0.0, *more, **options)
    functional.scaled_dot_product_attention = attention
    for kind in (nn.RNNBase, nn.MultiheadAttention):
        begin_without(draws, kind)


def begin_without(draws: Draws, kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def begin(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if self.dropout > 0:
            draws.drawn(DROPOUT)
        self.dropout = 0.0
    kind.__init__ = begin


def by_running_statistics(draws: Draws) -> None:
    functional: Any = nn.functional
    original = functional.batch_norm

    def batch_norm(tensor: Any, mean: Any, variance: Any, weight: Any = None, bias: Any = None, training: bool = False,
                   momentum: float = 0.1, eps: float = 1e-5) -> Any:
        if training:
            draws.drawn(NORMALIZES)
        return original(tensor, mean, variance, weight, bias, training and mean is None, momentum, eps)
    functional.batch_norm = batch_norm
    joined: Any = nn.SyncBatchNorm
    synchronized = joined.forward

    def forward(self: Any, tensor: Any) -> Any:
        if self.running_mean is None:
            return synchronized(self, tensor)
        return batch_norm(tensor, self.running_mean, self.running_var, self.weight, self.bias, self.training,
                          self.momentum or 0.0, self.eps)
    joined.forward = forward


def by_position(draws: Draws) -> None:
    """A loader's samples. Python's and torch's generators are as if the sample had drawn nothing."""
    fetcher: Any = torch.utils.data._utils.fetch._MapDatasetFetcher
    original = fetcher.fetch

    class Seeded:
        def __init__(self, of: Any) -> None:
            self.of = of

        def __getitem__(self, position: Any) -> Any:
            before, python = torch.get_rng_state(), random.getstate()
            seed = zlib.crc32(repr(position).encode())
            SEED["torch"](seed)
            SEED["random"](seed)
            begun = torch.get_rng_state(), random.getstate()
            numpy: Any = sys.modules.get("numpy")
            arrays = numpy.random.get_state() if numpy else None
            if numpy:
                SEED["numpy.random"](seed)
            try:
                return self.of[position]
            finally:
                if not torch.equal(begun[0], torch.get_rng_state()) or begun[1] != random.getstate():
                    draws.drawn(SAMPLES)
                torch.set_rng_state(before)
                random.setstate(python)
                if numpy:
                    numpy.random.set_state(arrays)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.of, name)

    @functools.wraps(original)
    def fetch(self: Any, positions: Any) -> Any:
        if not isinstance(self.dataset, Seeded) and not hasattr(self.dataset, "__getitems__"):
            self.dataset = Seeded(self.dataset)
        return original(self, positions)
    fetcher.fetch = fetch


def watch_loose(draws: Draws, name: str) -> None:
    original = getattr(torch, name)

    @functools.wraps(original)
    def draw(*arguments: Any, **options: Any) -> Any:
        site = draws.draws_at(options)
        draws.loose.add(site)
        if name == "randperm" and options.get("generator") is None:
            draws.orders.add("torch")
        result = original(*arguments, **options)
        draws.drawn_now.append((site, zlib.crc32(repr(result.tolist()).encode())))
        return result
    setattr(torch, name, draw)


class Dice(torch.Generator):
    """Knows before which updates it was used."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        del arguments, options  # the base's __new__ has taken them
        self.updates: set[int] = set()


def watch_seeds(draws: Draws, name: str, owners: tuple[Any, ...]) -> None:
    attribute = "manual_seed" if name == "torch" else "seed"
    original = SEED[name] = getattr(owners[0], attribute)

    @functools.wraps(original)
    def seed(*arguments: Any, **options: Any) -> Any:
        draws.seeded.add(name)
        return original(*arguments, **options)
    for owner in owners:
        setattr(owner, attribute, seed)


SEED: dict[str, Any] = {}  # by generator


def watch_draws(draws: Draws) -> None:
    module: Any = torch
    module.Generator = Dice
    watch_seeds(draws, "torch", (torch, torch.random))
    watch_seeds(draws, "random", (random,))
    if numpy := sys.modules.get("numpy"):
        watch_seeds(draws, "numpy.random", (numpy.random,))
    for name in LOOSE:
        watch_loose(draws, name)
    for name in DRAWS:
        wrap_draw(draws, name)
    for name in FILLS:
        wrap_fill(draws, name)


def note(draws: Draws, module: str, name: str, state: Callable[[Any], Any]) -> None:
    """Generators other than torch's that the program makes. `state`: of one."""
    owner = sys.modules.get(module)
    if owner is None:
        return
    original: Any = getattr(owner, name)

    def noted(one: Any) -> Any:
        draws.made.append((f"{module}.{name}", functools.partial(state, one)))
        return one
    if not isinstance(original, type):
        setattr(owner, name, functools.wraps(original)(lambda *seed, **named: noted(original(*seed, **named))))
        return

    class Noted(original):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            noted(self)
    Noted.__module__, Noted.__name__, Noted.__qualname__ = module, name, name
    setattr(owner, name, Noted)


def neutralize(draws: Draws, sites: list[str]) -> None:
    note(draws, "random", "Random", lambda one: one.getstate())
    note(draws, "numpy.random", "RandomState", lambda one: one.get_state(legacy=False))
    note(draws, "numpy.random", "default_rng", lambda one: one.bit_generator.state)
    draws.neutral, draws.neutralizes = frozenset(sites), True
    keep_all(draws)
    by_running_statistics(draws)
    by_position(draws)
