import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from tests.data.prepare.corpora import document, files, make, read, refusal


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Forty documents; number i has i % 3 + 1 sentences, with words that only it has and words that all have."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for i in range(40):
        lines = [f"all words of document d{i} , line {k}" for k in range(i % 3 + 1)]
        (folder / f"{i:02}.txt").write_text("\n".join(lines) + "\n")
    return folder


# The split


@pytest.mark.parametrize(
    ("fraction", "heldout"),
    [
        (0.05, [19, 39]),
        (0.1, [9, 19, 29, 39]),
        (0.5, list(range(1, 40, 2))),
        (0.025, [39]),
        (0.3, [3, 6, 9, 13, 16, 19, 23, 26, 29, 33, 36, 39]),
        (0.4, [2, 4, 7, 9, 12, 14, 17, 19, 22, 24, 27, 29, 32, 34, 37, 39]),
        (0.0, []),
    ],
)
def test_held_out_documents_are_spread_evenly(documents: Path, fraction: float, heldout: list[int]) -> None:
    corpus = make(documents.parent / "out", documents, heldout_fraction=fraction)
    assert read(corpus, "heldout") == [line for i in heldout for line in document(i)]
    assert read(corpus, "train") == [line for i in range(40) if i not in heldout for line in document(i)]
    splits = corpus.report["splits"]
    assert [splits[s]["documents"] for s in ("train", "heldout")] == [40 - len(heldout), len(heldout)]


@pytest.mark.parametrize("sizes", [(100, 9_900), (9_900, 100)])
def test_of_few_documents_runs_of_sentences_are_held_out(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """If the last document were held out, hardly anything might be left to train on."""
    (tmp_path / "text").mkdir()
    text = []
    for name, size in zip("ab", sizes, strict=True):
        lines = [f"sentence {i} of {name} , again" for i in range(size)]
        (tmp_path / "text" / f"{name}.txt").write_text("\n".join(lines) + "\n")
        text += lines
    corpus = make(tmp_path / "out", tmp_path / "text")
    heldout = [line for i, line in enumerate(text) if i % 2_000 >= 1_900]
    assert read(corpus, "heldout") == heldout and len(heldout) == 500
    assert read(corpus, "train") == [line for line in text if line not in set(heldout)]
    assert corpus.report["splits"]["heldout"]["documents"] is None


def test_a_copy_of_a_held_out_file_is_refused(documents: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.txt").write_bytes((documents / "07.txt").read_bytes())
    message = refusal(tmp_path / "out", documents, heldout_sources=[str(tmp_path / "copy.txt")])
    assert f"{documents / '07.txt'}: is a copy of {tmp_path / 'copy.txt'}, which is held out" in message


def test_the_largest_file_says_what_the_layout_is(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "README.txt").write_text("some texts\nof mine\n")
    (tmp_path / "text" / "story.txt").write_text("He came, and she, his friend, left. " * 99 + "\n")
    assert make(tmp_path / "out", tmp_path / "text").report["sources"][0]["format"] == "raw"


def test_everything_held_out_to_evaluate(documents: Path) -> None:
    vocabulary = documents.parent / "vocabulary.txt"
    vocabulary.write_text("<S>\n</S>\n<UNK>\nall\nof\n")
    out = documents.parent / "out"
    assert "no words left to train on" in refusal(out, documents, heldout_fraction=1)
    corpus = make(out, documents, heldout_fraction=1, vocabulary_file=vocabulary)
    assert len(read(corpus, "heldout")) == 79 and len(corpus.blocks("train")) == 0
    assert corpus.vocabulary() == ["<S>", "</S>", "<UNK>", "all", "of"]
    # A sentence has 8 words and a mark; "all", "of" and the mark are known.
    assert corpus.report["splits"]["heldout"]["unknown_targets"] == pytest.approx(6 / 9)
    assert corpus.report["splits"]["train"]["unknown_targets"] == 0


def test_empty_documents_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for i, text in enumerate(["one\n", "\n\n", "two\n", "\n", "three\n", "four\n"]):
        (tmp_path / "text" / f"{i}.txt").write_text(text)
    corpus = make(tmp_path / "out", tmp_path / "text", heldout_fraction=0.5, min_count=1)
    assert read(corpus, "train") == ["one", "three"] and read(corpus, "heldout") == ["two", "four"]
    assert corpus.report["text"]["empty_lines"] == 3


def test_one_file_is_held_out_in_runs_of_sentences(tmp_path: Path) -> None:
    lines = [f"sentence {i}" for i in range(1050)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    corpus = make(tmp_path / "out", tmp_path / "a.txt", heldout_fraction=0.25)
    assert read(corpus, "heldout") == lines[300:400] + lines[700:800]
    assert read(corpus, "train") == lines[:300] + lines[400:700] + lines[800:]
    assert corpus.report["splits"]["train"]["documents"] is None
    assert corpus.report["text"]["empty_lines"] == 1049


@pytest.mark.parametrize("form", ["lines", "long", "jsonl", "folder"])
def test_a_short_text_is_held_out_by_sentences(tmp_path: Path, form: str) -> None:
    """A unit of 100 sentences would be the whole text."""
    lines = [f"sentence {i} ." if form != "long" else " ".join([f"w{i}"] * 3000) for i in range(12)]
    path = tmp_path / "text"
    if form == "jsonl":
        path = tmp_path / "text.jsonl"
        path.write_text('{"text": "' + " ".join(f"This is the sentence {i}." for i in range(12)) + '"}\n')
    elif form == "folder":
        path.mkdir()
        (path / "one.txt").write_text("\n".join(lines))
    else:
        path.write_text("\n".join(lines))
    for number, (fraction, heldout) in enumerate(((0.5, 6), (0.25, 3), (0.01, 1))):
        corpus = make(tmp_path / f"out{number}", path, heldout_fraction=fraction, min_count=1)
        actual = [len(read(corpus, split)) for split in ("train", "heldout")]
        assert actual == [12 - heldout, heldout], form


def test_one_sentence_cannot_be_held_out(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one sentence .\n")
    message = refusal(tmp_path / "out", tmp_path / "text", heldout_fraction=0.5)
    assert message.startswith(
        "--heldout-fraction 0.5: nothing can be held out of a text of 1 sentences in one unit; give"
    )
    assert read(make(tmp_path / "out", tmp_path / "text", heldout_fraction=0, min_count=1), "train") == [
        "one sentence ."
    ]


def test_documents_and_runs_do_not_depend_on_the_chunks(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (documents / "long.txt").write_text("".join(f"sentence {i} of many\n" for i in range(300)))
    out = documents.parent
    whole = files(make(out / "a", documents).path), files(make(out / "c", documents / "long.txt").path)
    monkeypatch.setattr("elmo_jax.data.prepare.pieces.CHUNK_BYTES", 50)
    assert (files(make(out / "b", documents).path), files(make(out / "d", documents / "long.txt").path)) == whole


def test_heldout_sources(documents: Path, tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text("other words of all\nother\n")
    corpus = make(tmp_path / "out", documents, heldout_sources=[str(tmp_path / "held.txt")])
    assert read(corpus, "heldout") == ["other words of all", "other"]
    assert len(read(corpus, "train")) == 79
    assert corpus.report["settings"]["heldout_fraction"] is None
    assert corpus.words()[-1] == "other" and "other" not in corpus.vocabulary()
    assert (corpus.path / "lexicon.tsv").read_text().endswith("other\t0\n")


# Counts


def test_counts_are_of_the_training_text_only(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    texts = ["b b a c <UNK>", "a a a a h", "c b h2"]
    for i, text in enumerate(texts):
        (tmp_path / "text" / f"{i}.txt").write_text(text + "\n")
    held = tmp_path / "text" / "1.txt"
    corpus = make(tmp_path / "out", tmp_path / "text", heldout_fraction=0.5)
    counts = dict(line.split("\t") for line in (corpus.path / "lexicon.tsv").read_text().splitlines())
    expected = Counter((texts[0] + " " + texts[2]).split())
    assert {w: int(n) for w, n in counts.items() if int(n)} == {**expected, "<S>": 2, "</S>": 2}
    assert corpus.words() == ["<S>", "</S>", "<UNK>", "b", "c", "a", "h2", "h"]
    assert corpus.vocabulary() == ["<S>", "</S>", "<UNK>", "b", "c"]  # used twice
    splits = corpus.report["splits"]
    assert splits["train"]["unknown_targets"] == pytest.approx(3 / 10)  # a, <UNK>, h2
    assert splits["heldout"]["unknown_targets"] == pytest.approx(5 / 6)
    assert (splits["train"]["words"], splits["train"]["tokens"], splits["train"]["sentences"]) == (8, 10, 2)
    assert held.exists()


def test_report_counts_what_was_odd(tmp_path: Path) -> None:
    long = "x" * 49
    (tmp_path / "a.txt").write_bytes(f"<S> a {long} </S>\n\n{long} {'y' * 48}\n".encode() + b"caf\xe9\n")
    corpus = make(tmp_path / "out", tmp_path / "a.txt", errors="replace", min_count=1, heldout_fraction=0)
    assert corpus.report["text"] == {
        "empty_lines": 1,
        "special_words_dropped": 2,
        "replaced_lines": 1,
        "unspaced_documents": 0,
        "long_sentences": 0,
        "long_sentence_words": 0,
        "longest_sentence": 2,
    }
    assert corpus.report["lexicon"] == {
        "types": 7,
        "vocabulary_size": 7,
        "long_words": 1,
        "long_word_uses": 2,
    }


@pytest.mark.parametrize(
    ("settings", "size"),
    [({}, 10), ({"min_count": 1}, 50), ({"vocabulary_size": 12}, 12), ({"vocabulary_size": 5, "min_count": 2}, 5)],
)
def test_vocabulary_settings(documents: Path, settings: dict[str, int], size: int) -> None:
    # Words: 6 in every line, "0", "1", "2", and d0 to d39, of which two thirds have several lines.
    corpus = make(documents.parent / "out", documents, heldout_fraction=0, **settings)
    several = sum(i % 3 > 0 for i in range(40))
    expected = {10: 3 + 9 + several, 50: 3 + 9 + 40}.get(size, size)
    assert corpus.vocabulary_size == len(corpus.vocabulary()) == expected
    assert corpus.words()[: corpus.vocabulary_size] == corpus.vocabulary()


# The same result


def test_workers_and_compression_do_not_change_the_result(tmp_path: Path) -> None:
    for i, suffix in enumerate(("plain", "gz")):
        (tmp_path / suffix).mkdir()
        rng = np.random.default_rng(0)
        for k in range(3):
            words = rng.zipf(1.3, 100_000).clip(0, 30_000).astype("U6")
            text = "\n".join(" ".join(line) for line in np.split(words, 4_000)).encode()
            (tmp_path / suffix / f"{k}.txt{'.gz' * i}").write_bytes(gzip.compress(text, 1) if i else text)
    settings: dict[str, Any] = {"text": TextOptions("lines"), "heldout_fraction": 0.2, "progress": False}
    one = prepare([str(tmp_path / "plain")], tmp_path / "one", PrepareOptions(workers=1, **settings))
    three = prepare([str(tmp_path / "plain")], tmp_path / "three", PrepareOptions(workers=3, **settings))
    assert files(three.path) == files(one.path)
    zipped = prepare([str(tmp_path / "gz")], tmp_path / "zipped", PrepareOptions(workers=2, **settings))
    assert zipped.fingerprint == one.fingerprint
    a, b = files(zipped.path), files(one.path)
    assert {name for name in a if a[name] != b[name]} == {"corpus.json"}  # which names the sources


def test_fingerprint_follows_text_and_vocabulary(documents: Path) -> None:
    base = documents.parent
    first = make(base / "a", documents)
    assert make(base / "b", documents / "*.txt").fingerprint == first.fingerprint
    assert make(base / "c", documents, vocabulary_size=9).fingerprint != first.fingerprint
    assert make(base / "d", documents, heldout_fraction=0.1).fingerprint != first.fingerprint
    (documents / "07.txt").write_text("all words of document d7 , line 1\nall words of document d7 , line 0\n")
    assert make(base / "e", documents).fingerprint != first.fingerprint
