"""Fetches the softmax's rows for a step, and collects their gradients.

Either every device holds all rows, or each device holds a share (`Placement`); the results are equal up to rounding.
Both variants are parts of the program of one device over the named axes of the mesh.

Shapes: N targets of the device, S negatives of both directions (the same on all devices), R rows stored, D devices,
r = R / D rows of a device's share, C rows requested from one owner per round, G rows per part of the gradients.

The shapes of a compiled program are fixed, and a batch of unusual text can touch many times as many rows as any other.
So there is room for the rows of usual batches, and a loop for further ones.
"""

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from elmo_jax.checkpoints.softmax_layout import GROUPS, stored_rows
from elmo_jax.distributed.mesh import AXIS
from elmo_jax.errors import UserError
from elmo_jax.model.precision import Precision
from elmo_jax.training.optimizer import combine_rows
from elmo_jax.types import Tree

_State = TypeVar("_State")
FURTHER_ROUNDS = "further_rounds"  # the name of a loop, by which the analysis of a compiled program recognizes it

Part = tuple[Any, Tree]  # the ids of rows, each once, with ids past the end that are to be ignored; their gradients


@dataclasses.dataclass(frozen=True)
class RowGradients:
    """The gradients of the rows that a device updates, averaged over all devices, in parts of G rows."""

    # the ids [G] and gradients [G, ...] of the first part, which has all rows of usual batches; or None and the
    # gradients of all rows
    first: Part
    # computes a further part from its number; it exchanges rows, so all devices must call it together
    part: Callable[[jax.Array], Part] | None = None
    parts: jax.Array | int = 1  # the number of parts, the same on all devices

    def fold(self, body: Callable[[Part, _State], _State], state: _State) -> _State:
        state, part = body(self.first, state), self.part
        if part is None:
            return state
        return further_rounds(self.parts, lambda number, state: body(part(number), state), state)


def further_rounds(number: Any, body: Callable[[Any, _State], _State], state: _State) -> _State:
    """Runs the rounds from 1 to before `number`, which usual texts do not need."""
    with jax.named_scope(FURTHER_ROUNDS):
        return lax.while_loop(lambda c: c[0] < number, lambda c: (c[0] + 1, body(c[0], c[1])), (1, state))[1]


class Placement(enum.Enum):
    """The placement of the softmax's rows and of their Adagrad accumulators."""

    REPLICATED = "replicated"  # every device has all rows
    SHARDED = "sharded"  # every device has a share of the rows, and is the owner of these

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec(AXIS) if self is Placement.SHARDED else PartitionSpec()


class Wanted(NamedTuple):
    """The softmax rows that the loss of a device reads."""

    targets: jax.Array  # [N]
    negatives: jax.Array  # [S]


class ReplicatedRows:
    """The exchange for softmax rows that are replicated.

    All devices have the same negatives, so the gradients of these are averaged in place. The targets differ, so each
    device sends the gradients of its targets to all others, and all devices make the same update.
    """

    def fetch(self, softmax: Tree, wanted: Wanted | None) -> tuple[Tree, Any]:
        """Returns the wanted rows [N + S, ...], targets first, and what `collect` needs; for None all rows in order."""
        if wanted is None:
            return softmax, None
        return jax.tree.map(lambda w: w[jnp.concatenate(wanted)], softmax), None

    def collect(self, softmax: Tree, wanted: Wanted | None, fetched: Any, gradient: Tree) -> RowGradients:
        """Returns the gradients of the rows that this device updates, averaged over all devices.

        `fetched` is the second result of `fetch`, and `gradient` [N + S, ...] is that of the fetched rows.
        """
        if wanted is None:
            return RowGradients((None, lax.pmean(gradient, AXIS)))
        split, devices = wanted.targets.shape[0], lax.axis_size(AXIS)
        of_negatives = lax.pmean(jax.tree.map(lambda g: g[split:], gradient), AXIS)
        of_targets = jax.tree.map(lambda g: lax.all_gather(g[:split] / devices, AXIS, tiled=True), gradient)
        ids = jnp.concatenate([lax.all_gather(wanted.targets, AXIS, tiled=True), wanted.negatives])
        rows = jax.tree.map(lambda t, n: jnp.concatenate([t, n]), of_targets, of_negatives)
        return RowGradients(combine_rows(ids, rows, softmax["bias"].shape[0]))

    def total(self, squares: jax.Array) -> jax.Array:
        """Returns the sum over all rows, each once, from that over the rows that this device updates."""
        return squares


@dataclasses.dataclass(frozen=True)
class ShardedRows:
    """The exchange for softmax rows that are divided over the devices.

    Each device requests the rows of its distinct targets from their owners, and sends their gradients back in the same
    way. The rows of the negatives are the same for all devices; one all-reduce, to which only the owner of a row
    contributes, gives them to all.
    """

    precision: Precision = Precision.FLOAT32  # the precision of the matrix products that read the rows

    def fetch(self, softmax: Tree, wanted: Wanted | None) -> tuple[Tree, Any]:
        # `softmax` is this device's share, [r, ...].
        if wanted is None:  # for vocabularies so small that all rows are trained at every step
            return jax.tree.map(lambda w: lax.all_gather(w, AXIS, tiled=True), softmax), None
        requests = _Requests(wanted.targets, softmax["bias"].shape[0])
        mine = requests.mine(wanted.negatives)

        def ask(number: Any, state: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
            rows, touched = state
            indices, asked = requests.indices(number), requests.asked(number)
            answers = jax.tree.map(lambda w: _to_all(w.at[asked].get(mode="fill", fill_value=0)), softmax)  # [D, C, ..]
            rows = jax.tree.map(lambda r, a: r.at[indices].set(a, mode="drop"), rows, answers)
            return rows, touched.at[asked].set(True, mode="drop")

        none = jax.tree.map(lambda w: jnp.zeros((requests.size, *w.shape[1:]), w.dtype), softmax)
        touched = jnp.zeros((requests.share,), bool).at[mine].set(True, mode="drop")
        of_targets, touched = requests.in_rounds(ask, (none, touched))

        def common(w: jax.Array) -> jax.Array:
            row = w.at[mine].get(mode="fill", fill_value=0)
            # Only matrix products read the kernel's rows, so they may be sent rounded like operands.
            return lax.psum(self.precision.operand(row) if row.ndim > 1 else row, AXIS).astype(w.dtype)

        rows = jax.tree.map(lambda t, w: jnp.concatenate([t[requests.of], common(w)]), of_targets, softmax)
        return rows, (requests, mine, touched)

    def collect(self, softmax: Tree, wanted: Wanted | None, fetched: Any, gradient: Tree) -> RowGradients:
        devices = lax.axis_size(AXIS)
        if wanted is None:
            scattered = jax.tree.map(lambda g: lax.psum_scatter(g / devices, AXIS, tiled=True), gradient)
            return RowGradients((None, scattered))
        # mine [S]: the positions of the negatives in the share, r for rows of others; touched [r]: has it a gradient?
        requests, mine, touched = fetched
        split, share = requests.size, requests.share
        most = min(share, devices * split + wanted.negatives.shape[0])  # the most rows that a batch can touch
        size = min(most, part_size(split, wanted.negatives.shape[0], devices))
        # of_targets [N, P]   | for owner 0 | for owner 1 | … |    of the distinct targets, on every device
        #                        round k: C rows for each owner, by all_to_all
        #                                 v
        # share      [r, P]   . x . . x x . . x . . x . …         x: touched, as a target of a device or a negative
        # slots      [r]      - 0 - - 1 2 - - 3 - - 4 - …         in ascending order
        # parts      [G, P]   |  part 0   |  part 1   | …         G consecutive slots each; one part for usual batches
        slots = jnp.where(touched, jnp.cumsum(touched) - 1, -1)
        parts = lax.pmax(-(-touched.sum() // size), AXIS)
        of_targets = jax.tree.map(lambda g: jax.ops.segment_sum(g[:split] / devices, requests.of, split), gradient)
        of_negatives = lax.pmean(jax.tree.map(lambda g: g[split:], gradient), AXIS)

        def part(number: Any) -> Part:
            first = number * size
            index_of = jnp.where((slots >= first) & (slots < first + size), slots - first, size)  # [r]

            def add(sums: Tree, rows: jax.Array, gradients: Tree) -> Tree:
                indices = index_of.at[rows].get(mode="fill", fill_value=size)
                return jax.tree.map(lambda s, g: s.at[indices].add(g, mode="drop"), sums, gradients)

            def give_back(number: Any, sums: Tree) -> Tree:
                indices = requests.indices(number)
                sent = jax.tree.map(lambda g: _to_all(g.at[indices].get(mode="fill", fill_value=0)), of_targets)
                return add(sums, requests.asked(number), sent)

            ids = (share + jnp.arange(size)).at[index_of].set(jnp.arange(share), mode="drop")
            none = jax.tree.map(lambda g: jnp.zeros((size, *g.shape[1:]), g.dtype), gradient)
            return ids, requests.in_rounds(give_back, add(none, mine, of_negatives))

        return RowGradients(part(0)) if size == most else RowGradients(part(0), part, parts)

    def total(self, squares: jax.Array) -> jax.Array:
        return lax.psum(squares, AXIS)  # each row has one owner


class _Requests:
    """The distinct targets of a device, in the order of their owners, divided into rounds of requests."""

    def __init__(self, targets: jax.Array, share: int) -> None:
        devices = lax.axis_size(AXIS)
        self.size, self.share = targets.shape[0], share
        self._capacity = round_size(self.size, devices)
        self._no_row = share * devices  # an id past all rows
        # The distinct targets [N] are in ascending order, and so are their owners; `of` [N] is each target's index
        # among them.
        self._distinct, self.of = jnp.unique(targets, size=self.size, fill_value=self._no_row, return_inverse=True)
        self._starts = jnp.searchsorted(self._distinct, jnp.arange(devices + 1) * share)  # [D + 1]
        longest = jnp.max(jnp.diff(self._starts))
        self._rounds = lax.pmax(-(-longest // self._capacity), AXIS)  # must be the same on all devices
        self._first_asked = self._ask(0)

    def mine(self, rows: jax.Array) -> jax.Array:
        """Returns the places of rows in this device's share, or r for rows of other owners."""
        indices = rows - lax.axis_index(AXIS) * self.share
        return jnp.where((indices >= 0) & (indices < self.share), indices, self.share)

    def indices(self, number: Any) -> jax.Array:
        """Returns the indices of the distinct targets requested from each owner in a round, [D, C], filled with N."""
        indices = self._starts[:-1, None] + number * self._capacity + jnp.arange(self._capacity)
        return jnp.where(indices < self._starts[1:, None], indices, self.size)

    def asked(self, number: Any) -> jax.Array:
        """Returns the places of this device's rows that each device requests in a round, [D, C], filled with r."""
        return self._first_asked if isinstance(number, int) and number == 0 else self._ask(number)

    def _ask(self, number: Any) -> jax.Array:
        return self.mine(_to_all(self._distinct.at[self.indices(number)].get(mode="fill", fill_value=self._no_row)))

    def in_rounds(self, body: Callable[[Any, _State], _State], state: _State) -> _State:
        """Runs the first round, which suffices for most batches, and as many further rounds as any device needs."""
        return further_rounds(self._rounds, body, body(0, state))


def _to_all(array: jax.Array) -> jax.Array:
    """Exchanges what this device has for each device, [D, ...], for what each device has for this one, [D, ...]."""
    return lax.all_to_all(array, AXIS, split_axis=0, concat_axis=0, tiled=True)


def round_size(targets: int, devices: int) -> int:
    """Returns C, the number of rows that a device requests from one owner per round.

    Both directions predict nearly the same tokens, so at most about half of the targets are distinct; in 1 Billion Word
    30% are. The remainder of a word's id determines its owner, so the rows are divided almost evenly. The margin is
    four standard deviations.
    """
    return min(targets, _with_margin(targets / 2 / devices))


def part_size(targets: int, negatives: int, devices: int) -> int:
    """Returns G, the number of rows of a device's share whose gradients are handled at once.

    It has room for a round of requests by all devices and for the negatives in the share, which the remainder of a
    word's id divides almost evenly.
    """
    return devices * round_size(targets, devices) + _with_margin(negatives / devices)


def _with_margin(expected: float) -> int:
    return math.ceil(expected + 4 * math.sqrt(expected) + 4)


LARGE = 256e6  # bytes of rows and accumulators; `auto` does not replicate more than that


def choose_placement(
    setting: str, devices: int, vocabulary_size: int, projection: int, targets: int = 0, negatives: int = 0
) -> Placement:
    """Returns the placement that the setting `train.softmax` means for a model on some devices.

    `auto` divides the rows if they take more than `LARGE` bytes, including their accumulators. It also divides rows of
    any size if a device then receives fewer of them per step: S + 2 D C instead of (D - 1) N.

    The arguments are D, V, P, N of one device (0 if the softmax is only evaluated), and S of both directions.
    """
    divides = GROUPS % devices == 0
    if setting == "sharded" and not divides:
        problem = f"'sharded' divides the rows into {GROUPS} groups, which {devices} devices do not divide evenly"
        raise UserError(f"config.train.softmax: {problem}; use 2, 4, 8, … 256 devices, or 'replicated'")
    if setting != "auto":
        return Placement(setting)
    if devices == 1 or not divides:
        return Placement.REPLICATED
    held = 2 * stored_rows(vocabulary_size) * (projection + 1) * 4
    received = (devices - 1) * targets if negatives else 0
    divided = held > LARGE or received > negatives + 2 * devices * round_size(targets, devices)
    return Placement.SHARDED if divided else Placement.REPLICATED
