"""Twenty examples of every task in the task's own file format, and the settings of a model that learns them in seconds.

Every answer follows from the words, so that a small model learns all examples, and no two examples of a task are equal.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elmo_jax.config_file import with_overrides
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.coref.reader import read as read_documents
from elmo_jax.tasks.registry import default_config, task_config
from elmo_jax.tasks.sst.task import LABELS

NUMBER = 20
NAMES = ("Ann", "Bob", "Eve", "Zoë", "Li")
THINGS = ("lamp", "hat", "tree", "boat")
PAIRS = list(itertools.product(NAMES, THINGS))  # 20 of them


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task's file, settings, and what its file of predictions says.

    Attributes:
      file: the name of the file.
      text: its content.
      settings: of a small model without dropout, and of its training.
      written: the content of the file of predictions -> what `said` gives of each prediction.
      said: of a prediction as JSON.
    """

    file: str
    text: str
    settings: tuple[str, ...]
    written: Callable[[Path], list[Any]]
    said: Callable[[dict[str, Any]], Any]


def tagged(rows: list[list[tuple[str, ...]]]) -> str:
    """Sentences with a word and its columns per line."""
    return "".join("".join("\t".join(row) + "\n" for row in sentence) + "\n" for sentence in rows)


def last_columns(path: Path) -> list[list[str]]:
    """The last column of every sentence."""
    return [[line.split("\t")[-1] for line in block.split("\n")] for block in path.read_text().strip().split("\n\n")]


def pos() -> Problem:
    tags = {"the": "DET", "buys": "VERB", ".": "PUNCT"}
    tags |= {name: "PROPN" for name in NAMES} | {thing: "NOUN" for thing in THINGS}
    sentences = [[name, "buys", "the", thing, *((".",) if i % 2 else ())] for i, (name, thing) in enumerate(PAIRS)]
    rows = [
        [(str(i), word, "_", tags[word], *["_"] * 2, "0", *["_"] * 3) for i, word in enumerate(words, 1)]
        for words in sentences
    ]
    settings = ("model.layers=(8,)", "model.dropout=0.0")
    return Problem("train.conllu", tagged(rows), settings, last_columns, lambda said: said["tags"])


def ner() -> Problem:
    rows = []
    for i, (name, thing) in enumerate(PAIRS):
        tail = [("New", "B-LOC"), ("York", "I-LOC")] if i % 3 else [("Rome", "B-LOC")]
        rows.append([(name, "B-PER"), ("took", "O"), ("a", "O"), (thing, "O"), ("to", "O"), *tail])
    settings = ("data.scheme=bio", "model.layers=(8,)", "model.dropout=0.0")
    return Problem("train.bio", tagged(rows), settings, last_columns, lambda said: said["tags"])


def sst() -> Problem:
    words = ("awful", "bad", "plain", "good", "great")
    trees = [
        f"({label} (2 {name}) ({label} (2 is) ({label} {word})))"
        for (label, word), name in itertools.islice(itertools.product(enumerate(words), NAMES), NUMBER)
    ]
    settings = (
        *("data.phrases=sentences", "data.shortest=1", "model.pre_encoder=7", "model.encoder=5", "model.integrator=4"),
        *("model.output_layers=(9,)", "model.output_dropout=(0.0,)", "model.input_dropout=0.0"),
        *("model.pre_encoder_dropout=0.0", "model.pooled_dropout=0.0"),
    )

    def written(path: Path) -> list[str]:
        return [LABELS[int(line.split("\t")[1])] for line in path.read_text().splitlines()]

    return Problem("train.txt", "\n".join(trees), settings, written, lambda said: said["label"])


def snli() -> Problem:
    kinds = {"entailment": "{0} sees {1}", "contradiction": "nobody sees {1}", "neutral": "{0} wants {1}"}
    records = []
    for i, (name, thing) in enumerate(PAIRS):
        label, hypothesis = list(kinds.items())[i % 3]
        parses = [f"( {text.replace(' ', ' ( ', 1)} ) )" for text in (f"{name} sees the {thing}", hypothesis)]
        parses = [parse.format(name, thing) for parse in parses]
        records.append({"gold_label": label} | {f"sentence{n}_binary_parse": p for n, p in enumerate(parses, 1)})
    settings = (
        *(f"model.{part}={size}" for part, size in (("encoder", 6), ("projection", 5), ("composition", 4))),
        *("model.output=7", "model.dropout=0.0", "model.attention_dropout=0.0", "model.matrix_penalty=0.0"),
    )

    def written(path: Path) -> list[str]:
        return [line.split("\t")[1] for line in path.read_text().splitlines()]

    lines = "".join(json.dumps(record) + "\n" for record in records)
    return Problem("train.jsonl", lines, settings, written, lambda said: said["label"])


def srl() -> Problem:
    lines = []
    for i, (name, thing) in enumerate(PAIRS[:10]):
        late = ("B-ARGM-TMP",) if i % 2 else ()
        words = f"{name} wants to paint the {thing}{' now' if late else ''}"
        wants = ("B-ARG0", "B-V", "B-ARG1", *["I-ARG1"] * 3, *["I-ARG1" for _ in late])
        paint = ("B-ARG0", "O", "O", "B-V", "B-ARG1", "I-ARG1", *late)
        lines += [f"1 {words} ||| {' '.join(wants)}\n", f"3 {words} ||| {' '.join(paint)}\n"]
    settings = ("data.format=bio", "model.layers=2", "model.units=8", "model.flag_dim=3", "model.dropout=0.0")

    def written(path: Path) -> list[list[str]]:
        blocks = path.read_text().strip().split("\n\n")
        return [column for block in blocks for column in list(zip(*map(str.split, block.split("\n")), strict=True))[1:]]

    def said(prediction: dict[str, Any]) -> tuple[str, ...]:
        from elmo_jax.tasks.formats.tags import brackets

        return tuple(brackets(prediction["tags"]))

    return Problem("train.bio", "".join(lines), settings, written, said)


def coref() -> Problem:
    documents = []
    for i, (name, thing) in enumerate(PAIRS):
        first = [(name, "(0)"), ("has", ""), ("a", "(1"), (thing, "1)"), *([("!", "")] if i % 2 else [])]
        sentences = [first, [("It", "(1)"), ("likes", ""), ("her", "(0)")], *([[("Yes", "")]] if i % 3 else [])]
        rows = [
            [("d", "0", str(i), word, *["-"] * 7, cell) for i, (word, cell) in enumerate(words)] for words in sentences
        ]
        documents.append(f"#begin document (nw/{name}{thing}); part 000\n{tagged(rows)}#end document\n")
    settings = (
        *("model.units=8", "model.hidden=12", "model.feature_dim=3", "model.max_span_width=2", "model.antecedents=9"),
        *("model.top_span_ratio=1.0", "model.lexical_dropout=0.0", "model.lstm_dropout=0.0", "model.dropout=0.0"),
        *("train.batch_size=1", "train.epochs=6", "train.optimizer.learning_rate=0.02"),
    )

    def said(prediction: dict[str, Any]) -> list[list[tuple[int, int]]]:
        return [[(mention["start"], mention["end"] - 1) for mention in cluster] for cluster in prediction["clusters"]]

    def written(path: Path) -> list[list[list[tuple[int, int]]]]:
        return [document.clusters for document in read_documents(path)]

    return Problem("train.conll", "".join(documents), settings, written, said)


def squad() -> Problem:
    articles = []
    for i, (name, thing) in enumerate(PAIRS[::2]):
        text = f"{name} found a {thing} ." if i % 2 else f"A {thing} is what {name} found ."
        answers = {f"Who found the {thing} ?": name, f"What did {name} find ?": thing}
        qas = [
            {
                "id": f"{i}{answer}",
                "question": question,
                "answers": [{"text": answer, "answer_start": text.index(answer)}],
            }
            for question, answer in answers.items()
        ]
        articles.append({"title": name, "paragraphs": [{"context": text, "qas": qas}]})
    settings = ("model.units=6", "model.dropout=0.0", "model.max_answer_length=3")

    def written(path: Path) -> list[str]:
        return list(json.loads(path.read_text()).values())

    text = json.dumps({"version": "1.1", "data": articles})
    return Problem("train.json", text, settings, written, lambda said: said["answer"])


PROBLEMS = {problem.__name__: problem for problem in (pos, ner, sst, snli, srl, coref, squad)}


def settings_of(problem: Problem, path: Path, *more: str) -> list[str]:
    """Returns the settings of a training on a problem's file, which is evaluated on it too, as on the command line."""
    settings = (
        *(f"data.{part}={path}" for part in ("train", "dev")),
        *("word_vectors.dim=8", "train.batch_size=20", "train.epochs=60", "train.num_buckets=1", "train.patience=0"),
        *("train.optimizer.learning_rate=0.03", "elmo.dropout=0.0", "elmo.dtype=float32"),
        *problem.settings,
        *more,
    )
    return [f"--config.{setting}" for setting in settings]


def config_of(name: str, problem: Problem, folder: Path, *more: str) -> TaskConfig:
    """Writes a problem's file, which is both trained on and evaluated, and returns the settings of its training."""
    path = folder / problem.file
    path.write_text(problem.text)
    config = with_overrides(default_config(name), settings_of(problem, path, *more))
    config.train.evaluate_every = config.train.epochs * -(-NUMBER // config.train.batch_size)  # once, at the end
    return task_config(config)
