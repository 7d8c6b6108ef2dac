"""Tests sources with names: how their text is prepared, how often a mixture reads it, and what is refused."""

from collections import Counter
from pathlib import Path

import grain
import numpy as np
import pytest

from elmo_jax.data.batches import MixedBlocks, Portion, epoch_tokens, portions
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.prepare.pipeline import describe
from elmo_jax.errors import UserError
from elmo_jax.files import named
from tests.data.prepare.corpora import document, files, make, read, refusal

# The blocks 0 to 5 twice per epoch, 6 to 25 every other epoch, and 26 once; the others are left out.
MIXED = [Portion(range(6), 12, 0.0), Portion(range(6, 26), 10, 0.0), Portion(range(26, 27), 1, 0.0)]
BLOCKS = list(range(30))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files news.txt, wiki.txt and more.txt of 700, 2,600 and 150 sentences."""
    folder = tmp_path_factory.mktemp("texts")
    for name, number in (("news", 700), ("wiki", 2600), ("more", 150)):
        lines = (f"{name} number {i % 97} has {i * i % 89} words , {i % 11} {name}{i % 5} ." for i in range(number))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def corpus(texts: Path) -> Corpus:
    """A corpus of the sources news (two files, of which others are named between), wiki, and one without a name."""
    (texts / "late.txt").write_text("news that came late : the end\n" * 400)
    sources = (f"news={texts}/news.txt", f"wiki={texts}/wiki.txt", f"{texts}/more.txt", f"news={texts}/late.txt")
    return make(texts / "corpus", *sources, heldout_fraction=0.1)


def lines_of(corpus: Corpus, split: str) -> dict[str, list[str]]:
    """Returns the sentences of each named source of a split, read from its blocks."""
    words, blocks = corpus.words(), corpus.blocks(split)
    names = corpus.source_of_blocks(split)
    assert len(names) == len(blocks)
    actual: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        text = " ".join("\n" if i == 0 else words[i] for i in blocks[number])
        actual.setdefault(name, []).extend(line.strip() for line in text.split("\n")[1:])
    return actual


# Preparing


def test_no_block_has_text_of_two_sources(corpus: Corpus, texts: Path) -> None:
    written = {name: (texts / f"{name}.txt").read_text().splitlines() for name in ("news", "late", "wiki", "more")}
    expected = {"news": written["news"] + written["late"], "wiki": written["wiki"], "other": written["more"]}
    train, heldout = lines_of(corpus, "train"), lines_of(corpus, "heldout")
    assert list(train) == list(heldout) == ["news", "wiki", "other"]
    for name, lines in expected.items():
        assert Counter(train[name] + heldout[name]) == Counter(lines)
    assert {name: len(lines) for name, lines in heldout.items()} == {"news": 200, "wiki": 200, "other": 50}


def test_counts_of_the_sources_add_up(corpus: Corpus) -> None:
    for split in ("train", "heldout"):
        whole, sources = corpus.report["splits"][split], corpus.sources(split)
        for key in ("sentences", "tokens", "blocks"):
            assert sum(source[key] for source in sources) == whole[key] > 0
        unknown = sum(source["unknown_targets"] * source["tokens"] for source in sources)
        assert unknown == pytest.approx(whole["unknown_targets"] * whole["tokens"])
    assert [source["name"] for source in corpus.report["sources"]] == ["news", "wiki", "other", "news"]
    table = describe(corpus)
    assert "\nsource wiki\n  tokens " in table and f"{corpus.sources('train')[1]['tokens']:,}" in table


def test_names_are_part_of_what_is_identified(corpus: Corpus, texts: Path, tmp_path: Path) -> None:
    news, wiki = texts / "news.txt", texts / "wiki.txt"
    one = make(tmp_path / "one", f"news={news}", f"wiki={wiki}")
    two = make(tmp_path / "two", f"wiki={news}", f"news={wiki}")
    assert one.fingerprint != two.fingerprint and files(one.path / "blocks") == files(two.path / "blocks")
    assert one.fingerprint == make(tmp_path / "three", f"news={news}", f"wiki={wiki}", workers=2).fingerprint
    assert "wiki.txt: its text, format or name differs" in refusal(one.path, f"news={news}", f"all={wiki}")


def test_a_corpus_without_names(tmp_path: Path) -> None:
    """The fingerprint is that of version 2 of corpora, and the same on every machine."""
    (tmp_path / "documents").mkdir()
    for i in range(40):
        (tmp_path / "documents" / f"{i:02}.txt").write_text("\n".join(document(i)) + "\n")
    corpus = make(tmp_path / "out", tmp_path / "documents")
    assert corpus.fingerprint == "117b04a4f23d5d2134eaa5002b5357dc857d00469f87447fefcefb4f3c5747cb"
    assert "name" not in corpus.report["sources"][0]
    assert "sources" not in corpus.report["splits"]["train"] and corpus.sources("train") == []
    assert "source " not in describe(corpus)


def test_every_source_has_its_own_heldout_text(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        sentences = (f"This is sentence {i} of {name}, which ends here." for i in range(150))
        (tmp_path / f"{name}.txt").write_text(" ".join(sentences) + "\n")
    paths = [f"{name}={tmp_path}/{name}.txt" for name in ("a", "b")]
    apart = make(tmp_path / "apart", *paths, f"b={tmp_path}/c.txt", format="raw")
    heldout = lines_of(apart, "heldout")
    assert len(heldout["a"]) == 50 and len(heldout["b"]) == 100  # the last runs of sentences, of 150 and of 300
    given = make(tmp_path / "given", *paths, heldout_sources=[f"c={tmp_path}/c.txt"], format="raw")
    assert list(lines_of(given, "train")) == ["a", "b"] and list(lines_of(given, "heldout")) == ["c"]
    rows = describe(given).splitlines()
    assert rows[rows.index("source c") + 1].split() == ["tokens", "0", f"{given.tokens('heldout'):,}"]


def test_paths_that_exist_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.txt").write_text("one sentence\nand another\n")
    Path("d=[1].txt").write_text("a name that is no glob of itself\n")
    Path("b.txt").write_text("another text\nof two lines\n")
    for text, expected in (
        ("a=b.txt", ("", "a=b.txt")),
        ("a=*.txt", ("", "a=*.txt")),
        ("d=[1].txt", ("", "d=[1].txt")),
        ("c=b.txt", ("c", "b.txt")),
        ("c=a=b.txt", ("c", "a=b.txt")),
        ("c=tfds:lm1b", ("c", "tfds:lm1b")),
        ("./c=b.txt", ("", "./c=b.txt")),
        ("c=", ("", "c=")),
        ("=b.txt", ("", "=b.txt")),
    ):
        assert named(text) == expected
    assert read(make(tmp_path / "out", "a=b.txt", heldout_fraction=0, min_count=1), "train")[0] == "one sentence"
    for source, message in (
        ("./c=b.txt", "./c=b.txt: no such file"),
        ("c=nowhere", "nowhere: no such file"),
        (f"c={tmp_path}", "is inside"),
    ):
        assert message in refusal(tmp_path / "other", source)
    assert "b.txt: would be read twice" in refusal(tmp_path / "other", "c=b.txt", "d=b.txt")


# Mixing


def test_blocks_are_read_as_often_as_the_mixture_says() -> None:
    mixed = MixedBlocks(BLOCKS, MIXED, seed=3)
    epochs = [[mixed[i] for i in range(start, start + 23)] for start in range(0, 92, 23)]
    for number, epoch in enumerate(epochs, 1):
        counts = Counter(block for read in epochs[:number] for block in read)
        assert [counts[i] for i in range(6)] == [2 * number] * 6 and counts[26] == number
        assert {counts[i] for i in range(6, 26)} <= {number // 2, (number + 1) // 2}  # each before any comes again
        assert sum(i in range(6, 26) for i in epoch) == 10
        assert max(counts) == 26
    first = [0 if block < 6 else 1 for block in epochs[0]]
    assert first != sorted(first) and first != sorted(first, reverse=True)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_order_depends_on_the_seed_and_the_place_alone() -> None:
    sequence = [MixedBlocks(BLOCKS, MIXED, seed=3)[i] for i in range(100)]
    again = MixedBlocks(BLOCKS, MIXED, seed=3)
    for position in np.random.default_rng(0).permutation(100).tolist():
        assert again[position] == sequence[position]
    assert [MixedBlocks(BLOCKS, MIXED, seed=4)[i] for i in range(100)] != sequence


def test_portions(corpus: Corpus) -> None:
    news, wiki, other = corpus.sources("train")
    number = {source["name"]: source["blocks"] for source in (news, wiki, other)}
    actual = portions(corpus, (("wiki", 0.5), ("news", 2.0)))
    assert [portion.number for portion in actual] == [2 * number["news"], round(number["wiki"] / 2), number["other"]]
    assert [portion.blocks for portion in actual] == [
        range(number["news"]),
        range(number["news"], number["news"] + number["wiki"]),
        range(number["news"] + number["wiki"], len(corpus.blocks("train"))),
    ]
    tokens = 2 * news["tokens"] + round(number["wiki"] / 2) / number["wiki"] * wiki["tokens"] + other["tokens"]
    assert epoch_tokens(corpus, (("wiki", 0.5), ("news", 2.0))) == pytest.approx(tokens, abs=1)
    assert epoch_tokens(corpus, (("wiki", 1.0),)) == epoch_tokens(corpus, ()) == corpus.tokens("train")
    left_out = portions(corpus, (("news", 0.0), ("wiki", 1e-6)))
    assert [portion.number for portion in left_out] == [1, number["other"]]
    assert left_out[0].blocks.start == number["news"]


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ((("new", 2.0),), r"no source 'new'; the training text of .*corpus has the sources news, wiki, other$"),
        ((("news", 0.0), ("wiki", 0.0), ("other", 0.0)), "every source has the weight 0; expected one"),
    ],
)
def test_mixtures_that_are_refused(corpus: Corpus, mixture: tuple[tuple[str, float], ...], message: str) -> None:
    with pytest.raises(UserError, match=f"^config.data.mixture: {message}"):
        portions(corpus, mixture)


def test_a_mixture_of_a_corpus_without_names_is_refused(tmp_path: Path, texts: Path) -> None:
    corpus = make(tmp_path / "out", texts / "more.txt")
    with pytest.raises(UserError, match=r"no source 'news'; the training text of .*out was prepared without names"):
        portions(corpus, (("news", 2.0),))


def test_the_order_of_blocks_does_not_change_with_the_version_of_grain():
    """A run that is resumed with another version must read on in the same order; found with Grain 0.2.18."""
    order = grain.MapDataset.source(range(10)).seed(7).shuffle().repeat()
    assert [order[i] for i in range(20)] == [7, 9, 0, 8, 4, 2, 5, 6, 3, 1, 6, 0, 4, 2, 7, 9, 1, 5, 8, 3]
