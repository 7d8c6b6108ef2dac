"""Tests what every task refuses in its sources, and that it reports what it leaves out."""

import json
import re

import pytest

from elmo_jax.errors import UserError
from elmo_jax.tasks.formats.sources import read_source
from elmo_jax.tasks.registry import get_task
from tests.tasks.format_cases import write


def conll2012(words):
    rows = [f"bc/x 0 {i} {word} N * - - - A * {'(V*)' if i == 1 else '*'} (1)" for i, word in enumerate(words)]
    return "\n".join(["#begin document (bc/x); part 000", *rows, "", "#end document", ""])


def conllu(words):
    return "".join(f"{i}\t{word}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n" for i, word in enumerate(words, 1)) + "\n"


def question(context, text="1843", **others):
    start = context.find(text)
    answers = [{"text": text, "answer_start": start}] if text else []
    return json.dumps({"data": [{"title": "T", "paragraphs": [{"context": context, "qas": [
        {"id": "1", "question": "Who?", "answers": answers, **others}]}]}]})  # fmt: skip


def config_of(task, **data):
    config = task.config_class
    return config(data=type(config().data)(**data))


SOURCES = {
    "srl": lambda words: conll2012(words),
    "coref": lambda words: conll2012(words),
    "pos": lambda words: conllu(words),
    "ner": lambda words: "".join(f"{word} O\n" for word in words),
    "sst": lambda words: "".join(f"(2 (2 {word}) (2 (2 {word}) (2 (2 {word}) (2 {word}))))\n" for word in words),
    "snli": lambda words: f"neutral\t{' '.join(words)}\t{' '.join(words)}\n",
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("words", [["_"] * 3, ["XXXX"] * 21 + ["the", ","], ["[WORD]", "[WORD]"]])
def test_withheld_words_are_refused(tmp_path, name, words):
    task, path = get_task(name), write(tmp_path, SOURCES[name](words))
    if name == "snli" and words[0] == "[WORD]":
        words = ["WORD"]  # which the tokenizer has no brackets around
        path = write(tmp_path, f"neutral\t{' '.join(words * 11)}\t{' '.join(words * 11)}\n")
    with pytest.raises(
        UserError, match=r"words are withheld, \d+ of \d+ are '\[?[_X|WORD]+\]?'; fill them in with the"
    ):
        read_source(task, config_of(task), str(path), "training")


def test_words_that_are_there_are_not_withheld(tmp_path):
    task = get_task("pos")
    words = ["the", "_", "the", "cat", "_", "ran"]
    assert len(read_source(task, config_of(task), str(write(tmp_path, conllu(words))), "training")) == 1


@pytest.mark.parametrize("name", ["pos", "ner", "squad"])
def test_text_without_spaces_is_refused(tmp_path, name):
    sentence = "艾达在1843年写了它。"
    content = question(sentence) if name == "squad" else SOURCES[name]([sentence])
    task, path = get_task(name), write(tmp_path, content)
    with pytest.raises(UserError, match="is in a script without spaces between words; split it into words"):
        read_source(task, config_of(task), str(path), "training")


def test_words_without_spaces_may_be_long_if_they_are_rare(tmp_path):
    """Most words of Thai text are short, and most of its different words are long."""
    long = ["ประชาธิปไตย", "มหาวิทยาลัย", "กรุงเทพมหานคร"]
    path = write(tmp_path, conllu([word for rare in long for word in ("ที่", "ไป", "ที่", rare, "ไป")]))
    task = get_task("pos")
    assert len(read_source(task, config_of(task), str(path), "training")) == 1
    with pytest.raises(UserError, match="is in a script without spaces"):
        read_source(task, config_of(task), str(write(tmp_path, conllu(long))), "training")


@pytest.mark.parametrize(
    ("name", "content", "data", "examples", "told"),
    [
        ("srl", conll2012(["a", "b"]).replace("(V*)", "*"), {}, 0, "no predicate: 1"),
        ("snli", "-\ta\tb\nneutral\ta\tb\n", {}, 1, "did not agree on a label: 1"),
        (
            "ner",
            "a\tO\n\tB-X\n \tI-X\nb\tI-X\n\n\tO\n",
            {"empty_words": "skip", "scheme": "bio"},
            1,
            "their word is empty: 3",
        ),
        ("squad", question("Ada wrote it in 1843a."), {}, 1, "trained on as whole words: 1"),
        ("squad", question("Ada wrote it.", ""), {"missing": "skip"}, 0, "they have no answer, .*: 1"),
    ],
)
def test_what_is_left_out_or_changed_is_counted(tmp_path, capsys, name, content, data, examples, told):
    task, path = get_task(name), write(tmp_path, content)
    if examples:
        assert len(read_source(task, config_of(task, **data), str(path), "training")) == examples
    else:
        with pytest.raises(UserError, match="has no examples"):
            read_source(task, config_of(task, **data), str(path), "training")
    assert re.search(f"elmo-jax: {re.escape(str(path))}: .*{told}\n", capsys.readouterr().err)


@pytest.mark.parametrize("task", ["srl", "coref"])
def test_the_documents_of_a_list(tmp_path, task):
    """The documents are as in OntoNotes, each with gold and automatic annotation, and a list names those of a split."""
    folder = tmp_path / "annotations"
    for position in ("bc/a/x_01", "bc/b/x_01", "nw/c/y_02"):
        for kind in ("gold", "auto"):
            file = folder / f"{position}.v4_{kind}_conll"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(conll2012([f"{kind}-{position[3]}", "sees", "it"]))
    listing = tmp_path / "dev.id"

    def words(source):
        return [
            get_task(task).texts(example)[0][0][0]
            for example in read_source(get_task(task), config_of(get_task(task)), source, "evaluation")
        ]

    listing.write_text("nw/c/y_02\n\nbc/a/x_01\n")
    assert words(f"{folder}[{listing}]") == ["gold-c", "gold-a"]
    assert words(str(folder)) == ["gold-a", "gold-b", "gold-c"] and words(f"{folder}[1:]") == ["gold-b", "gold-c"]
    for text, number, actual in (("nw/c/z", 1, 0), ("nw/c/y_02\nx_01\n", 2, 2)):
        listing.write_text(text)
        name = text.split("\n")[number - 1]
        with pytest.raises(UserError, match=f"dev.id, line {number}: '{name}': expected one file in .* found {actual}"):
            words(f"{folder}[{listing}]")
