"""Batches: what a window holds, and that it depends on the seed and the position alone."""

import tracemalloc

import grain
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from elmo_jax.characters import PADDING, encode_chars
from elmo_jax.data.batches import BatchSettings, Portion, TrainingBatches, draw_negatives, prefetched
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, END_SENTENCE_ID, UNKNOWN_ID
from elmo_jax.data.windows import DistinctWords, EvaluationLayout, Share, both_directions, evaluation_windows

TYPES, VOCABULARY, STEPS = 60, 40, 7
MIXED = (Portion(range(3), 6, 0.0), Portion(range(3, 11), 4, 0.0))  # every block of the first source twice


def make_blocks(number=11, seed=0):
    """Returns blocks of whole sentences of several lengths, one of them shorter than a window."""
    rng = np.random.default_rng(seed)
    blocks = []
    for i in range(number):
        number = 1 if i == 4 else 6
        sentences = [np.append(BEGIN_SENTENCE_ID, rng.integers(3, TYPES, rng.integers(1, 9))) for _ in range(number)]
        blocks.append(np.concatenate(sentences).astype(np.int32))
    return blocks


@pytest.fixture(scope="module")
def char_ids():
    rng = np.random.default_rng(1)
    return encode_chars(["<S>", "</S>", "<UNK>", *("x" * n for n in rng.integers(1, 45, TYPES - 3))], 50)


def make_batches(char_ids, rows, total, *, position=None, step=0, devices=1, blocks=None, negatives=12, mixed=()):
    blocks = make_blocks() if blocks is None else blocks
    settings = BatchSettings(total, STEPS, negatives, VOCABULARY, data_seed=5, draw_seed=6, mixed=mixed)
    return TrainingBatches(blocks, DistinctWords(char_ids, PADDING), settings, Share(rows, devices), position, step)


def words_of(window, devices):
    """Returns the lexicon ids [2, T, B] of a window, which undoes the distinct words."""
    words = window.words.reshape(devices, -1)
    share = window.inputs.shape[2] // devices
    parts = [words[d][window.inputs[:, :, d * share : (d + 1) * share]] for d in range(devices)]
    return np.concatenate(parts, axis=2)


def test_both_directions_of_sentences():
    block = np.array([0, 5, 6, 7, 0, 8, 0, 9, 10])
    forward_in, forward_out, backward_in, backward_out = both_directions(block)
    assert_array_equal(forward_in, block)
    assert_array_equal(forward_out, [5, 6, 7, END_SENTENCE_ID, 8, END_SENTENCE_ID, 9, 10, END_SENTENCE_ID])
    assert_array_equal(backward_in, [END_SENTENCE_ID, 7, 6, 5, END_SENTENCE_ID, 8, END_SENTENCE_ID, 10, 9])
    assert_array_equal(backward_out, [7, 6, 5, BEGIN_SENTENCE_ID, 8, BEGIN_SENTENCE_ID, 10, 9, BEGIN_SENTENCE_ID])


def test_a_row_is_its_blocks_end_to_end(char_ids):
    blocks = make_blocks()
    rows, total = range(2), 2
    batches = make_batches(char_ids, rows, total, blocks=blocks)
    windows = [next(batches) for _ in range(40)]
    order = grain.MapDataset.source(blocks).seed(5).shuffle().repeat()
    for row in rows:
        stream = np.concatenate([both_directions(order[row + total * slot]) for slot in range(12)], axis=1)
        read = np.concatenate([words_of(b.window, 1)[:, :, row] for b in windows], axis=1)  # inputs, both directions
        assert_array_equal(read, stream[::2, : read.shape[1]])
        targets = np.concatenate([b.window.targets[:, :, row] for b in windows], axis=1)
        expected = stream[1::2, : targets.shape[1]]
        assert_array_equal(targets, np.where(expected < VOCABULARY, expected, UNKNOWN_ID))
        assert np.any(expected >= VOCABULARY)
        reset_state = np.concatenate([b.reset_state[:, row] for b in windows])
        lengths = [len(order[row + total * slot]) for slot in range(12)]
        starts = np.cumsum([0, *lengths])
        assert_array_equal(np.flatnonzero(reset_state), starts[starts < len(reset_state)])


def test_every_epoch_reads_every_block_once_in_another_order():
    order = grain.MapDataset.source(list(range(11))).seed(5).shuffle().repeat()
    epochs = [[order[i] for i in range(start, start + 11)] for start in (0, 11, 22)]
    assert all(sorted(epoch) == list(range(11)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("mixed", [(), MIXED])
def test_continues_from_any_position_with_the_same_batches(char_ids, mixed):
    whole = make_batches(char_ids, range(4), 4, mixed=mixed)
    seen = [next(whole) for _ in range(25)]
    for stop in (1, 9, 20):
        again = make_batches(char_ids, range(4), 4, position=seen[stop - 1].position, step=stop, mixed=mixed)
        for expected in seen[stop:]:
            batch = next(again)
            assert_array_equal(batch.position, expected.position)
            assert_array_equal(batch.window.inputs, expected.window.inputs)
            assert_array_equal(batch.window.words, expected.window.words)
            assert_array_equal(batch.window.targets, expected.window.targets)
            assert_array_equal(batch.negatives, expected.negatives)


@pytest.mark.parametrize("mixed", [(), MIXED])
def test_rows_are_the_same_whoever_reads_them(char_ids, mixed):
    one = make_batches(char_ids, range(4), 4, mixed=mixed)
    rows, devices = (range(2), range(2, 4)), (1, 2)
    two = [make_batches(char_ids, r, 4, devices=n, mixed=mixed) for r, n in zip(rows, devices, strict=True)]
    for _ in range(15):
        whole, parts = next(one), [next(batches) for batches in two]
        together = np.concatenate([words_of(parts[0].window, 1), words_of(parts[1].window, 2)], axis=2)
        assert_array_equal(words_of(whole.window, 1), together)
        assert_array_equal(whole.window.targets, np.concatenate([p.window.targets for p in parts], axis=2))
        assert_array_equal(whole.negatives, parts[0].negatives)
        assert_array_equal(whole.negatives, parts[1].negatives)


def test_distinct_words_are_found_once_and_short_ones_first(char_ids):
    batch = next(make_batches(char_ids, range(4), 4, devices=2))
    lengths = (char_ids != PADDING).sum(1)
    for device in range(2):
        words = batch.window.words.reshape(2, -1)[device]
        count = batch.window.word_count[device]
        used = batch.window.inputs[:, :, 2 * device : 2 * device + 2]
        assert_array_equal(np.unique(used), np.arange(count))
        assert len(set(words[:count])) == count
        assert np.all(np.diff(lengths[words[:count]]) >= 0)


def test_negatives_are_drawn_again_at_every_step_and_for_each_direction(char_ids):
    batches = make_batches(char_ids, range(4), 4)
    drawn = [tuple(ids) for _ in range(5) for ids in next(batches).negatives.tolist()]
    assert len(set(drawn)) == 10


def test_negatives_are_distinct_and_log_uniform():
    rng = np.random.default_rng(0)
    counts, num_draws = np.zeros(50), []
    for _ in range(4000):
        ids, n = draw_negatives(rng, 5, 50)
        assert len(set(ids.tolist())) == 5 and ids.min() >= 0 and ids.max() < 50
        counts[ids] += 1
        num_draws.append(n)
    probability = np.log((np.arange(50) + 2) / (np.arange(50) + 1)) / np.log(51)
    # The loss subtracts the logarithm of this from logits: the probability of being among the negatives, given the
    # draws.
    expected = np.mean([-np.expm1(n * np.log1p(-probability)) for n in num_draws], axis=0)
    assert np.abs(counts / 4000 - expected).max() < 0.03


def test_negatives_of_a_large_and_of_a_nearly_used_up_vocabulary():
    rng = np.random.default_rng(0)
    num_draws = [draw_negatives(rng, 8192, 793_471)[1] for _ in range(20)]
    assert 15_900 < np.mean(num_draws) < 16_200  # about 16,050
    ids, tries_needed = draw_negatives(rng, 49, 50)
    assert len(set(ids.tolist())) == 49 and tries_needed >= 49


@pytest.mark.parametrize(("rows", "padded", "steps"), [(3, 4, 5), (1, 1, 64), (64, 64, 3)])
def test_evaluation_reads_every_token_once(char_ids, rows, padded, steps):
    blocks = make_blocks()
    text = np.concatenate(blocks)
    distinct = DistinctWords(char_ids, PADDING)
    layout = EvaluationLayout(rows, padded, steps, VOCABULARY)
    windows = list(evaluation_windows(blocks, distinct, layout, Share(range(padded), 1)))
    streams = np.concatenate([words_of(w.window, 1) for w in windows], axis=1)  # [2, T, B]
    mask = np.concatenate([w.mask for w in windows])
    sentence = np.concatenate([w.sentence for w in windows])
    assert mask.sum() == len(text)
    expected = both_directions(text)[::2]  # Rows one after another are the text itself, with whole sentences.
    assert_array_equal(np.concatenate([streams[:, mask[:, b], b] for b in range(padded)], axis=1), expected)
    numbers = np.cumsum(text == BEGIN_SENTENCE_ID) - 1
    assert_array_equal(np.concatenate([sentence[mask[:, b], b] for b in range(padded)]), numbers)
    for b in range(padded):  # each row begins with a sentence
        assert not mask[0, b] or streams[0, 0, b] == BEGIN_SENTENCE_ID


def layout_of(blocks, distinct, rows, steps):
    """The windows of an evaluation: mask [T, B] and sentence [T, B] of the whole."""
    windows = list(evaluation_windows(blocks, distinct, EvaluationLayout(rows, rows, steps, 40), Share(range(rows), 1)))
    return windows, np.concatenate([w.mask for w in windows]), np.concatenate([w.sentence for w in windows])


def test_a_long_sentence_is_divided_among_the_rows_of_an_evaluation(char_ids):
    """A file without line breaks has such a sentence. Each of its tokens is scored once, in both directions."""
    rng = np.random.default_rng(0)
    long = np.append(BEGIN_SENTENCE_ID, rng.integers(3, TYPES, 30_000)).astype(np.int32)
    blocks = [*make_blocks(5), long, *make_blocks(5)]
    windows, mask, sentence = layout_of(blocks, DistinctWords(char_ids, PADDING), rows=10, steps=50)
    text = np.concatenate(blocks)
    assert len(windows) <= len(text) / (10 * 50) + 2
    streams = np.concatenate([words_of(w.window, 1) for w in windows], axis=1)  # [2, T, B]
    expected = both_directions(text)[::2]
    assert_array_equal(np.concatenate([streams[:, mask[:, b], b] for b in range(10)], axis=1), expected)
    numbers = np.cumsum(text == BEGIN_SENTENCE_ID) - 1
    assert_array_equal(np.concatenate([sentence[mask[:, b], b] for b in range(10)]), numbers)


class Endless:
    """A text of many blocks, made when they are read."""

    def __len__(self):
        return 2_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return np.where(np.arange(1600) % 20, rng.integers(3, TYPES, 1600), BEGIN_SENTENCE_ID).astype(np.int32)


def test_the_text_of_an_evaluation_is_never_in_memory(char_ids):
    tracemalloc.start()
    try:
        layout = EvaluationLayout(16, 16, 400, VOCABULARY)
        windows = evaluation_windows(Endless(), DistinctWords(char_ids, PADDING), layout, Share(range(16), 1))
        tokens = sum(int(window.mask.sum()) for window in windows)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tokens == 2_000 * 1600  # 12.8 MB of ids alone
    assert most < 6e6


def test_prefetched_items_come_in_order_and_errors_in_their_place():
    def items():
        yield from range(3)
        raise ValueError("the disk is gone")

    got = prefetched(items())
    assert [next(got) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the disk is gone"):
        next(got)
    assert list(prefetched(iter("ab"))) == ["a", "b"]
