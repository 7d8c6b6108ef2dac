"""Files of all tasks with texts of many lengths, and the settings of a small model, to count programs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tests.tasks.problems import NAMES, THINGS, tagged

TRAIN = (3, 5, 8, 12, 18, 26, 33, 47, 58, 70) * 2
EVALUATED = (4, 9, 17, 31, 44, 61, 75, 90) * 2  # some are longer than all of the training
SETTINGS = {
    "pos": ("model.layers=(4,)",),
    "ner": ("data.scheme=bio", "model.layers=(4,)"),
    "sst": (
        *("data.phrases=sentences", "data.shortest=1", "model.pre_encoder=3", "model.encoder=3", "model.integrator=3"),
        *("model.output_layers=(4,)", "model.output_dropout=(0.0,)"),
    ),
    "snli": tuple(f"model.{part}=3" for part in ("encoder", "projection", "composition", "output")),
    "srl": ("data.format=bio", "model.layers=2", "model.units=4", "model.flag_dim=3"),
    "coref": (
        *("model.units=4", "model.hidden=4", "model.feature_dim=3", "model.max_span_width=2", "model.antecedents=5"),
        *("train.max_sentences=8", "train.batch_size=1"),
    ),
    "squad": ("model.units=3", "model.max_answer_length=3"),
}


def words(number: int, length: int) -> list[str]:
    """Returns a text of some words; the number chooses its first ones."""
    return [*itertools.islice(itertools.cycle([NAMES[number % 5], "buys", "the", THINGS[number % 4], "."]), length)]


def tree(texts: list[str], node: str) -> str:
    """Returns a binary tree that branches to the right; `node` is the beginning of each of its nodes."""
    (first, *rest) = texts
    return f"({node} {first} {tree(rest, node)} )" if rest else first


def content(task: str, lengths: tuple[int, ...]) -> str:
    """Returns the content of a file with a text of each length."""
    texts = [words(number, length) for number, length in enumerate(lengths)]
    match task:
        case "pos":
            rows = [[(str(i), word, "_", "X", *["_"] * 6) for i, word in enumerate(text, 1)] for text in texts]
            return tagged(rows)
        case "ner":
            return tagged([[(word, "B-PER" if word in NAMES else "O") for word in text] for text in texts])
        case "sst":
            return "\n".join(tree([f"(2 {word})" for word in text], str(i % 5)) for i, text in enumerate(texts))
        case "snli":
            labels = itertools.cycle(("entailment", "contradiction", "neutral"))
            pairs = [(tree(text, ""), tree(text[: 2 + len(text) // 2], "")) for text in texts]
            keys = ("sentence1_binary_parse", "sentence2_binary_parse", "gold_label")
            records = [dict(zip(keys, (*pair, label), strict=True)) for pair, label in zip(pairs, labels, strict=False)]
            return "".join(json.dumps(record) + "\n" for record in records)
        case "srl":
            return "".join(f"1 {' '.join(text)} ||| B-ARG0 B-V{' O' * (len(text) - 2)}\n" for text in texts)
        case "coref":
            cells = {name: "(0)" for name in NAMES}
            documents = []
            for number, text in enumerate(texts):
                sentences = [text[start : start + 6] for start in range(0, len(text), 6)]
                rows = [
                    [("d", "0", str(i), word, *["-"] * 7, cells.get(word, "")) for i, word in enumerate(sentence)]
                    for sentence in sentences
                ]
                documents.append(f"#begin document (nw/{number}); part 000\n{tagged(rows)}#end document\n")
            return "".join(documents)
        case _:
            articles = []
            for number, text in enumerate(texts):
                answer = {"text": text[0], "answer_start": 0}
                question = {"id": str(number), "question": f"Who{' then' * (len(text) // 9)} ?", "answers": [answer]}
                articles.append({"title": "t", "paragraphs": [{"context": " ".join(text), "qas": [question]}]})
            return json.dumps({"version": "1.1", "data": articles})


SUFFIXES = {
    "pos": "conllu",
    "ner": "bio",
    "sst": "txt",
    "snli": "jsonl",
    "srl": "bio",
    "coref": "conll",
    "squad": "json",
}


def write(task: str, folder: Path) -> list[str]:
    """Writes the files of a task; returns the settings of a training of two epochs, as on the command line."""
    settings = ["word_vectors.dim=4", "characters.filters=((2,3),)", "train.epochs=2", "train.batch_size=4"]
    for split, lengths in (("train", TRAIN), ("dev", EVALUATED), ("test", EVALUATED)):
        path = folder / f"{split}.{SUFFIXES.get(task, 'bio')}"
        path.write_text(content(task, lengths))
        settings.append(f"data.{split}={path}")
    return [f"--config.{setting}" for setting in (*settings, *SETTINGS[task])]
