"""The texts that `evaluate` reads: what it says of them, and options that would have no effect."""

import pytest

from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.errors import UserError
from elmo_jax.training import evaluate_text


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The house, it stood there. It rained.\n\nThen, it fell.\n")
    return path


def test_the_guessed_format_is_said(text, tmp_path, capsys):
    vocabulary = ["<S>", "</S>", "<UNK>", "house"]
    corpus = evaluate_text._corpus([str(text)], vocabulary, tmp_path, None)
    assert corpus.report["splits"]["heldout"]["sentences"] == 3
    printed = capsys.readouterr().err
    assert (
        printed.startswith(f"{text}: read as raw: its commas are attached to words") and "--format to change" in printed
    )


def test_options_that_a_prepared_corpus_would_ignore_are_refused(text, tmp_path, monkeypatch):
    corpus = prepare(
        [str(text)],
        tmp_path / "corpus",
        PrepareOptions(TextOptions("raw"), heldout_fraction=1, vocabulary_file=words(text)),
    )
    given = [str(corpus.path)]
    for options, names in (
        (TextOptions("raw"), "--format has"),
        (TextOptions(errors="replace"), "--errors has"),
        (TextOptions(field="body"), "--field has"),
        (TextOptions(language="de"), "--language has"),
        (TextOptions("raw", language="de"), "--format and --language have"),
    ):
        with pytest.raises(UserError, match=f"corpus: a prepared corpus, on which {names} no effect"):
            evaluate_text._corpus(given, corpus.vocabulary(), tmp_path, options)
    monkeypatch.setenv("HOME", str(tmp_path))
    for options, name in ((None, given[0]), (TextOptions(), given[0]), (None, "~/corpus")):
        assert evaluate_text._corpus([name], corpus.vocabulary(), tmp_path, options).path == corpus.path


def words(text):
    path = text.with_name("words.txt")
    path.write_text("<S>\n</S>\n<UNK>\nhouse\n")
    return path
