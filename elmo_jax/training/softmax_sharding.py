"""Where a step gets the softmax's rows from, and where their gradients go.

Every device holds all rows, or each holds a share (`Placement`); the numbers are the same but for rounding. Both are
parts of the program of one device over the named axis `data`.

Shapes: N targets of the device, S negatives of both directions (the same on all devices), R rows stored, D devices,
r = R / D rows of a device's share, C rows asked of one owner at a time, G rows of a device that have a gradient.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from elmo_jax.checkpoints.softmax_layout import LANES, stored_rows
from elmo_jax.errors import UserError
from elmo_jax.model.precision import Precision
from elmo_jax.training.optimizer import combine_rows
from elmo_jax.types import Tree

AXIS = "data"
FURTHER_ROUNDS = "further_rounds"  # the name of their loop in a program, by which a reader of programs knows it

Carry = TypeVar("Carry")


class Placement(enum.Enum):
    """Where the softmax's rows and their Adagrad accumulators are."""

    REPLICATED = "replicated"  # all of them on every device
    SHARDED = "sharded"  # a share on each device, which is the owner of these rows

    @property
    def spec(self) -> PartitionSpec:
        """Of the rows, over the mesh."""
        return PartitionSpec(AXIS) if self is Placement.SHARDED else PartitionSpec()


class Wanted(NamedTuple):
    """The rows that a device's loss reads."""

    targets: jax.Array  # [N]
    negatives: jax.Array  # [S]


class ReplicatedRows:
    """All devices share the negatives, so their gradients are averaged in place; targets differ, so each device sends
    the gradients of its own to all others, and all make the same update."""

    def fetch(self, softmax: Tree, wanted: Wanted | None) -> tuple[Tree, Any]:
        """The wanted rows [N + S, ...], targets first, and what `collect` needs to know; for None all rows, in their
        order."""
        if wanted is None:
            return softmax, None
        return jax.tree.map(lambda w: w[jnp.concatenate(wanted)], softmax), None

    def collect(self, softmax: Tree, wanted: Wanted | None, fetched: Any, gradient: Tree) -> tuple[Any, Tree]:
        """The means over devices of the gradients of fetched rows.

        Returns:
          ids [M] of rows, each once, and those past the end to be left out; and their gradients [M, ...]. For all rows,
          None and [R, ...].
        """
        if wanted is None:
            return None, lax.pmean(gradient, AXIS)
        split, devices = wanted.targets.shape[0], lax.axis_size(AXIS)
        of_negatives = lax.pmean(jax.tree.map(lambda g: g[split:], gradient), AXIS)
        of_targets = jax.tree.map(lambda g: lax.all_gather(g[:split] / devices, AXIS, tiled=True), gradient)
        ids = jnp.concatenate([lax.all_gather(wanted.targets, AXIS, tiled=True), wanted.negatives])
        rows = jax.tree.map(lambda t, n: jnp.concatenate([t, n]), of_targets, of_negatives)
        return combine_rows(ids, rows, softmax["bias"].shape[0])

    def total(self, squares: jax.Array) -> jax.Array:
        """A sum over the rows that a device updates -> over all rows, each once."""
        return squares


@dataclasses.dataclass(frozen=True)
class ShardedRows:
    """Each device asks the owners for its distinct targets' rows and sends their gradients back the same way. The
    negatives' rows are the same for all devices, so they are put together by one sum in which each row has one owner.

    What is asked of one owner at a time has a fixed size that texts as they come do not fill; where one does, further
    rounds follow, so that any batch is exact.
    """

    precision: Precision = Precision.FLOAT32

    def fetch(self, softmax: Tree, wanted: Wanted | None) -> tuple[Tree, Any]:
        """As `ReplicatedRows.fetch`; `softmax` is the device's share, [r, ...]."""
        if wanted is None:  # for vocabularies so small that all rows are trained at every step
            return jax.tree.map(lambda w: lax.all_gather(w, AXIS, tiled=True), softmax), None
        requests = _Requests(wanted.targets, softmax["bias"].shape[0])
        mine = requests.mine(wanted.negatives)

        def ask(number: Any, carry: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
            rows, touched = carry
            places, asked = requests.places(number), requests.asked(number)
            answers = jax.tree.map(lambda w: _to_all(w.at[asked].get(mode="fill", fill_value=0)), softmax)  # [D, C, ..]
            rows = jax.tree.map(lambda r, a: r.at[places].set(a, mode="drop"), rows, answers)
            return rows, touched.at[asked].set(True, mode="drop")

        none = jax.tree.map(lambda w: jnp.zeros((requests.size, *w.shape[1:]), w.dtype), softmax)
        touched = jnp.zeros((requests.share,), bool).at[mine].set(True, mode="drop")
        of_targets, touched = requests.in_rounds(ask, (none, touched))

        def common(w: jax.Array) -> jax.Array:
            row = w.at[mine].get(mode="fill", fill_value=0)
            # they are read as an operand of a product only, so they may travel as one
            return lax.psum(self.precision.operand(row) if row.ndim > 1 else row, AXIS).astype(w.dtype)

        rows = jax.tree.map(lambda t, w: jnp.concatenate([t[requests.of], common(w)]), of_targets, softmax)
        return rows, _Fetched(requests, mine, touched)

    def collect(self, softmax: Tree, wanted: Wanted | None, fetched: Any, gradient: Tree) -> tuple[Any, Tree]:
        """As `ReplicatedRows.collect`, of the device's own rows."""
        devices = lax.axis_size(AXIS)
        if wanted is None:
            return None, jax.tree.map(lambda g: lax.psum_scatter(g / devices, AXIS, tiled=True), gradient)
        requests, mine, touched = cast(_Fetched, fetched)
        split, share = requests.size, requests.share
        most = min(share, devices * split + wanted.negatives.shape[0])  # G: what any batch can touch
        # the touched rows in rising order, each with a slot
        slots = jnp.where(touched, jnp.cumsum(touched) - 1, most)
        ids = (share + jnp.arange(most)).at[slots].set(jnp.arange(share), mode="drop")
        of_targets = jax.tree.map(lambda g: jax.ops.segment_sum(g[:split] / devices, requests.of, split), gradient)
        of_negatives = lax.pmean(jax.tree.map(lambda g: g[split:], gradient), AXIS)

        def add(sums: Tree, rows: jax.Array, gradients: Tree) -> Tree:
            places = slots.at[rows].get(mode="fill", fill_value=most)
            return jax.tree.map(lambda s, g: s.at[places].add(g, mode="drop"), sums, gradients)

        def give_back(number: Any, sums: Tree) -> Tree:
            places = requests.places(number)
            sent = jax.tree.map(lambda g: _to_all(g.at[places].get(mode="fill", fill_value=0)), of_targets)
            return add(sums, requests.asked(number), sent)

        none = jax.tree.map(lambda g: jnp.zeros((most, *g.shape[1:]), g.dtype), gradient)
        return ids, requests.in_rounds(give_back, add(none, mine, of_negatives))

    def total(self, squares: jax.Array) -> jax.Array:
        """As `ReplicatedRows.total`: each row has one owner."""
        return lax.psum(squares, AXIS)


class _Requests:
    """The distinct targets of a device, in the order of their owners, and which are exchanged in which round."""

    def __init__(self, targets: jax.Array, share: int) -> None:
        devices = lax.axis_size(AXIS)
        self.size, self.share = targets.shape[0], share
        self._capacity = round_size(self.size, devices)
        self._nobodys = share * devices  # an id past all rows
        # rows rise, and so do their owners; `of` is each target's place among the distinct
        self._distinct, self.of = jnp.unique(
            targets, size=self.size, fill_value=self._nobodys, return_inverse=True
        )  # [N], [N]
        self._starts = jnp.searchsorted(self._distinct, jnp.arange(devices + 1) * share)  # [D + 1]
        longest = jnp.max(jnp.diff(self._starts))
        self._rounds = lax.pmax(-(-longest // self._capacity), AXIS)  # the same on all devices
        self._first_asked = self._ask(0)

    def mine(self, rows: jax.Array) -> jax.Array:
        """Rows -> places in this device's share; r for those of other owners."""
        places = rows - lax.axis_index(AXIS) * self.share
        return jnp.where((places >= 0) & (places < self.share), places, self.share)

    def places(self, number: Any) -> jax.Array:
        """[D, C] of the distinct targets, those asked of each owner in a round; N where there are none left."""
        places = self._starts[:-1, None] + number * self._capacity + jnp.arange(self._capacity)
        return jnp.where(places < self._starts[1:, None], places, self.size)

    def asked(self, number: Any) -> jax.Array:
        """[D, C] of this device's rows, those that each device asks for in a round; r where it asks for none."""
        return self._first_asked if isinstance(number, int) and number == 0 else self._ask(number)

    def _ask(self, number: Any) -> jax.Array:
        return self.mine(_to_all(self._distinct.at[self.places(number)].get(mode="fill", fill_value=self._nobodys)))

    def in_rounds(self, body: Callable[[Any, Carry], Carry], carry: Carry) -> Carry:
        """The first round, which is all that most batches need, and as many more as any device needs."""
        first = body(0, carry)
        with jax.named_scope(FURTHER_ROUNDS):
            _, last = lax.while_loop(lambda c: c[0] < self._rounds, lambda c: (c[0] + 1, body(c[0], c[1])), (1, first))
        return last


class _Fetched(NamedTuple):
    requests: _Requests
    mine: jax.Array  # [S] the negatives' places in the share, r for those of other owners
    touched: jax.Array  # [r] whether a row will have a gradient


def _to_all(array: jax.Array) -> jax.Array:
    """[D, ...] what a device has for each -> [D, ...] what each has for it."""
    return lax.all_to_all(array, AXIS, split_axis=0, concat_axis=0, tiled=True)


def round_size(targets: int, devices: int) -> int:
    """C: so many rows a device asks of one owner at a time.

    Both directions predict nearly the same tokens, so about half of the targets are distinct at most; of 1 Billion Word
    30% are. Owners have them by the remainder of their ids, as good as evenly: the margin is four standard deviations.
    """
    expected = targets / 2 / devices
    return min(targets, math.ceil(expected + 4 * math.sqrt(expected) + 4))


LARGE = 256e6  # bytes of rows and accumulators: `auto` does not leave more than that on every device


def choose_placement(
    setting: str, devices: int, vocabulary_size: int, projection: int, targets: int = 0, negatives: int = 0
) -> Placement:
    """What `train.softmax` means for a model on some devices.

    `auto` divides rows whose bytes, with their accumulators, are more than `LARGE`; and rows of any size where a device
    would receive more of them in a step otherwise: (D - 1) N against S + 2 D C.

    Args:
      setting: "auto", "replicated" or "sharded".
      targets: N, of one device; 0 where nothing is trained. negatives: S.

    Raises:
      UserError: rows are to be divided over devices that cannot share the lanes out evenly.
    """
    divides = LANES % devices == 0
    if setting == "sharded" and not divides:
        raise UserError(
            f"config.train.softmax: 'sharded' shares {LANES} lanes of rows out, and {devices} devices do not divide"
            " them; use 2, 4, 8, … 256 devices, or take 'replicated'"
        )
    if setting != "auto":
        return Placement(setting)
    if devices == 1 or not divides:
        return Placement.REPLICATED
    held = 2 * stored_rows(vocabulary_size) * (projection + 1) * 4
    received = (devices - 1) * targets if negatives else 0
    if held > LARGE or received > negatives + 2 * devices * round_size(targets, devices):
        return Placement.SHARDED
    return Placement.REPLICATED
