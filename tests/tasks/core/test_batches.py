"""Tests the buckets of examples: their shapes, and the batches of an epoch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from elmo_jax.tasks.core.data import ACCELERATOR, CPU, Buckets, Ladder, choose_shapes, with_overflow


@pytest.mark.parametrize(
    ("ladder", "expected"),
    [
        (ACCELERATOR, {0: 32, 1: 32, 32: 32, 33: 64, 64: 64, 65: 128, 1000: 1024}),
        (CPU, {0: 4, 1: 4, 4: 4, 5: 8, 63: 64, 64: 64, 65: 72, 128: 128, 129: 144, 257: 288, 1000: 1024}),
    ],
)
def test_the_ladder(ladder: Ladder, expected: dict[int, int]) -> None:
    assert {size: ladder.rung(size) for size in expected} == expected
    assert ladder.round_up(((1, 33), (3, 5))) == ((1, ladder.rung(33)), (ladder.rung(3, 1), ladder.rung(5)))
    assert ladder.rung(1, 1) == 1  # an example with one row stays one


def padded(sizes: list[tuple[tuple[int, int], ...]], shapes: tuple[tuple[tuple[int, int], ...], ...]) -> int:
    """Returns the number of words with padding."""
    buckets = Buckets.of(sizes, shapes)
    return sum(len(m) * shape[0][1] for m, shape in zip(buckets.members, buckets.shapes, strict=True))


def test_shapes_have_almost_as_little_padding_as_the_best_ones() -> None:
    lengths = np.random.default_rng(0).lognormal(2.7, 0.6, 500).astype(int).clip(1, 90)
    sizes = [((1, int(length)),) for length in lengths]
    for number in (1, 2, 3):
        shapes = choose_shapes(sizes, number, CPU)
        assert len(shapes) == number
        rungs = sorted({CPU.round_up(size) for size in sizes})
        choices = itertools.combinations(rungs[:-1], number - 1)
        assert padded(sizes, shapes) <= 1.1 * min(padded(sizes, (*choice, rungs[-1])) for choice in choices)
    few = [((1, length),) for length in (*[8] * 10, 16, 48)]  # 10 * 8 words of padding, or 32
    assert choose_shapes(few, 2, CPU) == (((1, 8),), ((1, 48),))
    assert choose_shapes(sizes[:1] * 9, 6, CPU) == (CPU.round_up(sizes[0]),)  # no more shapes than are of use


def test_all_sizes_of_an_example_fit_into_its_bucket() -> None:
    rng = np.random.default_rng(1)
    sizes = [((1, a), (1, b)) for a, b in rng.integers(1, 60, (200, 2)).tolist()]
    buckets = Buckets.of(sizes, choose_shapes(sizes, 4, CPU))
    assert sorted(np.concatenate(buckets.members).tolist()) == list(range(200))
    for members, shape in zip(buckets.members, buckets.shapes, strict=True):
        assert (np.array([sizes[i] for i in members]) <= np.array(shape)).all()
    for low, high in itertools.pairwise(buckets.shapes):
        assert (np.array(low) <= np.array(high)).all()  # so that examples can move on


def test_what_fits_into_no_shape_has_one_more() -> None:
    shapes = (((1, 8), (1, 12)), ((1, 20), (1, 24)))
    assert with_overflow(shapes, [((1, 8), (1, 8)), ((1, 20), (1, 24))]) == shapes
    assert with_overflow(shapes, []) == shapes
    actual = with_overflow(shapes, [((1, 21), (1, 3)), ((1, 1), (1, 70))])
    assert actual == (*shapes, ((1, 32), (1, 128)))


def test_every_epoch_has_all_examples_and_the_same_number_of_batches_of_each_shape() -> None:
    sizes = [((1, length),) for length in [3] * 7 + [9] * 6 + [30] * 4]
    buckets = Buckets.of(sizes, [((1, 4),), ((1, 12),), ((1, 20),), ((1, 32),)])
    assert buckets.shapes == (((1, 4),), ((1, 12),), ((1, 32),))  # without the one that has no example
    orders = []
    for seed in (None, 0, 1):
        batches = buckets.epoch(4, None if seed is None else np.random.default_rng(seed))
        assert sorted(i for batch in batches for i in batch.examples) == list(range(17))
        assert sorted((len(batch.examples), batch.shape[0][1]) for batch in batches) == [
            *((1, 32), (4, 4), (4, 12), (4, 12), (4, 32)),
        ]
        orders.append([batch.examples for batch in batches])
    assert orders[0] != orders[1] != orders[2]
    smaller = buckets.epoch(lambda shape: 2 if shape == ((1, 32),) else 4, None)
    assert [batch.examples for batch in smaller] == [
        *((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12,), (13, 14), (15, 16)),
    ]
