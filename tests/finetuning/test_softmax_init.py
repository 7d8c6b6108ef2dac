"""Rows that fine-tuning begins with, and texts under another vocabulary."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.finetuning.softmax_init import extended_softmax, heldout_under, unigram_softmax

pytestmark = pytest.mark.quick

KNOWN, ADDED, OTHERS, PROJECTION = 6, 3, 2, 4


@pytest.fixture
def softmax():
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(KNOWN, PROJECTION)).astype(np.float32)
    return {"kernel": kernel, "bias": rng.normal(size=KNOWN).astype(np.float32)}


# <S> </S> <UNK>, three known words, three added ones, two others
COUNTS = np.array([9, 9, 1, 50, 40, 0, 12, 6, 3, 2, 0])


def probabilities(softmax, hidden):
    logits = softmax["kernel"].astype(np.float64) @ hidden + softmax["bias"]
    return np.exp(logits) / np.exp(logits).sum()


def test_old_rows_are_untouched_and_new_ones_share_out_the_unknown(softmax):
    new = extended_softmax(softmax, COUNTS, KNOWN + ADDED)
    for name in ("kernel", "bias"):
        assert new[name].dtype == np.float32 and len(new[name]) == KNOWN + ADDED
        assert new[name][:KNOWN].tobytes() == softmax[name].tobytes()
    unknown = 1 + 12 + 6 + 3 + 2  # all occurrences of <UNK> in the training text
    for seed in range(5):
        hidden = np.random.default_rng(seed).normal(size=PROJECTION)
        before, after = probabilities(softmax, hidden), probabilities(new, hidden)
        given = before[2] * np.array([12, 6, 3]) / unknown
        assert_allclose(after[KNOWN:] / after[:KNOWN].sum(), given, rtol=1e-5)
        assert_allclose(after[:KNOWN], before / (1 + before[2] * 21 / unknown), rtol=1e-5)
        assert (after[:KNOWN] >= before / (1 + before[2])).all()


@pytest.mark.parametrize(
    ("unknown", "added", "others"),
    [
        (0, [0, 0], []),  # a text of known words only, and a vocabulary that it never uses
        (5, [0] * 800, []),
        (0, [1], [0]),
        (3, [7, 0, 2] + [0] * 50, [1, 1]),
        (10**12, [0], [10**12]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_known_words_lose_little_to_words_that_the_text_does_not_use(softmax, unknown, added, others):
    counts = np.array([9, 9, unknown, 50, 40, 0, *added, *others], np.int64)
    new = extended_softmax(softmax, counts, KNOWN + len(added))
    assert np.isfinite(new["bias"]).all()
    for seed in range(5):
        hidden = np.random.default_rng(seed).normal(size=PROJECTION)
        before, after = probabilities(softmax, hidden), probabilities(new, hidden)
        assert (after[:KNOWN] * (1 + 1e-6) >= before / (1 + before[2])).all()
        assert (after[KNOWN:] > 0).all()


def test_a_softmax_of_its_own_has_the_words_frequencies():
    size = KNOWN + ADDED
    softmax = unigram_softmax(COUNTS, size, PROJECTION)
    uses = np.array([9, 9, 1 + 2 + 0, 50, 40, 0, 12, 6, 3]) + 1
    assert_allclose(np.exp(softmax["bias"]), uses / uses.sum(), rtol=1e-5)
    assert softmax["kernel"].shape == (size, PROJECTION) and not softmax["kernel"].any()


def test_the_same_tokens_under_another_vocabulary(tmp_path):
    text = "we the people of the union\nthe union of zebras\n"
    (tmp_path / "text.txt").write_text(text)
    words = tmp_path / "vocabulary.txt"
    words.write_text("<S>\n</S>\n<UNK>\nthe\nof\n")
    settings = {"heldout_fraction": 1, "vocabulary_file": words, "workers": 1, "progress": False}
    corpus = prepare(
        [str(tmp_path / "text.txt")], tmp_path / "corpus", PrepareOptions(TextOptions("lines"), **settings)
    )
    vocabulary = ["<S>", "</S>", "<UNK>", "zebras", "unseen", "the"]
    blocks, char_ids = heldout_under(corpus, vocabulary, 12)
    actual = np.concatenate([blocks[i] for i in range(len(blocks))])
    # every word keeps its spelling, and the first six ids are the vocabulary's
    encoded = ["".join(chr(c) for c in row if c < 256) for row in char_ids[actual]]
    assert "|".join(encoded) == "|we|the|people|of|the|union||the|union|of|zebras"
    targets = ["the" if i == 5 else "zebras" if i == 3 else "<S>" if i == 0 else "<UNK>" for i in actual]
    assert targets.count("the") == 3 and targets.count("zebras") == 1 and targets.count("<S>") == 2
    assert max(actual) < len(char_ids) == 6 + 4  # we, people, union, of
