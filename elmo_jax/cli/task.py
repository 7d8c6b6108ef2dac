"""Defines the commands `task train`, `task evaluate` and `task predict`."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_jax import files
from elmo_jax.cli.options import Commands, add_choice, add_run_options, run_of
from elmo_jax.cli.values import anywhere, check_distinct, output, source, tolerant_output, whole
from elmo_jax.errors import UserError
from elmo_jax.files import write_json, write_text

if TYPE_CHECKING:
    from elmo_jax.tasks.core.trained_task import TrainedTask


TEXT = ("", ".txt", ".text", ".md")  # the endings of files that may be running text


def add_command(commands: Commands) -> None:
    """Adds the command `task` with its three subcommands."""
    task = commands.add_parser(
        "task",
        help="train, evaluate and use a task model",
        description="Trains, evaluates and applies task models with and without ELMo: parts of speech, named entities,"
        " sentiment, textual entailment, semantic roles, coreference and question answering.",
    )
    inner = task.add_subparsers(required=True, metavar="COMMAND")
    parser = inner.add_parser(
        "train",
        help="train a task model with each seed, or resume a run",
        description="Trains a task model with each seed of the config. If a run was stopped or killed, run the command"
        " again to resume it.",
        epilog="Every setting can be overridden (--config.bilm=english --config.seeds='(0,1,2)'); elmo-jax settings"
        " FILE lists them all.",
    )
    add_run_options(parser)
    parser.set_defaults(run=_train, takes_settings=True)

    parser = inner.add_parser(
        "evaluate",
        help="evaluate a task model on annotated text",
        description="Prints the official metrics of a trained task model on annotated examples. A run keeps"
        " pretrained word vectors only for the words of its data.train, data.dev and data.test; other words are unknown"
        " to it, so give a file as data.test when training to use the vectors of its words.",
    )
    _add_model(parser)
    parser.add_argument("--data", type=source, required=True, metavar="FILE", help="annotated examples as in data.test")
    parser.add_argument("--json", type=output, metavar="FILE", help="write the metrics to FILE as JSON")
    predictions = "write the predictions to FILE as JSON lines, with ids"
    parser.add_argument("--predictions", type=output, metavar="FILE", help=predictions)
    parser.set_defaults(run=_evaluate)

    parser = inner.add_parser(
        "predict",
        help="apply a task model to text",
        description="Prints predictions for text from the command line or a file. A task with two texts per example"
        " (premise and hypothesis, question and paragraph) takes both after --text, or a file whose lines have both"
        " separated by a tab. Words without a pretrained vector in the run are unknown to it, as in task evaluate. For"
        " a task that was trained with elmo.layer_norm=without_bos_eos, a prediction also depends on the other texts"
        " that are given with it.",
    )
    _add_model(parser)
    texts = parser.add_mutually_exclusive_group(required=True)
    texts.add_argument("--text", nargs="+", metavar="TEXT", help="the text, or both texts, of one example")
    texts.add_argument("--input", metavar="FILE", help="a file of text or of examples; - for standard input")
    format = (
        "data: examples in the format of data.test, with or without labels; raw: running text, which is tokenized as in"
        " training, with one text per line for a classifier of whole texts; lines: one tokenized sentence per line;"
        " auto: raw for standard input and for files named .txt, .text or .md if data.train is not, otherwise data"
    )
    add_choice(parser, "--format", ("auto", "data", "raw", "lines"), format)
    add_choice(parser, "--output", ("text", "json", "file"), "text for a person, JSON lines, or the task's file format")
    parser.add_argument("--out", type=output, metavar="FILE", help="the file to write (default: standard output)")
    parser.set_defaults(run=_predict)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=anywhere, metavar="RUN", help="the folder of a task's run")
    parser.add_argument("--seed", type=whole(0), metavar="N", help="seed of the model (default: the first one)")
    parser.add_argument("--ensemble", action="store_true", help="average the predictions of all finished seeds")


def _train(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_file, with_overrides
    from elmo_jax.runs.result import print_summary
    from elmo_jax.tasks.core.run import table, train_task
    from elmo_jax.tasks.registry import task_config

    name, workdir = run_of(options, "task_")
    config = task_config(with_overrides(load_file(options.config), options.overrides))
    if not config.bilm:
        print("config.bilm is empty: the model is trained without ELMo")
    return print_summary(train_task(config, workdir, name), workdir, table)


def _load(options: argparse.Namespace) -> "TrainedTask":
    from elmo_jax.tasks.core.trained_task import load_task

    if options.seed is not None and options.ensemble:
        raise UserError("--seed chooses one model and --ensemble averages all; remove one of the two options")
    trained = load_task(options.run_folder, None if options.seed is None else [options.seed], options.ensemble)
    if options.ensemble and (missing := [str(n) for n in trained.config.seeds if n not in trained.seeds]):
        reason = "since their training has not finished"
        print(f"elmo-jax: of config.seeds, left out of the average, {reason}: {', '.join(missing)}", file=sys.stderr)
    return trained


def _evaluate(options: argparse.Namespace) -> int:
    outputs = {"--json": options.json, "--predictions": options.predictions}
    check_distinct(outputs, {"RUN": options.run_folder, "--data": options.data})
    trained = _load(options)
    metrics = trained.evaluate(options.data, options.predictions)
    print(" · ".join(f"{k} {value if isinstance(value, int) else f'{value:.2f}'}" for k, value in metrics.items()))
    if options.json:
        write_json(options.json, metrics)
    return 0


def _predict(options: argparse.Namespace) -> int:
    from elmo_jax.runs.progress import print_above

    if options.input not in (None, "-"):
        check_distinct({"--out": options.out}, {"--input": files.local(options.input)})
    trained = _load(options)
    inputs = _inputs(options, trained)
    if silent := trained.without_examples(inputs):
        message = f"{silent} of {len(inputs)} sentences have no word that is a predicate in the training text"
        print(f"elmo-jax: {message}; nothing is predicted for them", file=sys.stderr)
    parts: Iterable[str]
    if options.output == "json":
        parts = (json.dumps(value, ensure_ascii=False) + "\n" for value in trained.stream(inputs))
    elif options.output == "file":
        pairs = list(trained.pairs(inputs))
        parts = [trained.task.write([example for example, _ in pairs], [prediction for _, prediction in pairs])]
    else:
        parts = (f"{trained.task.show(*pair)}\n" for pair in trained.pairs(inputs))
    if options.out:
        write_text(options.out, "".join(parts))
    else:
        tolerant_output("utf-8" if options.output in ("json", "file") else None)  # data, whatever the locale
        for part in parts:
            print_above(part)
    return 0


def _inputs(options: argparse.Namespace, trained: "TrainedTask") -> list[Any]:
    """Returns the examples of a file that training could read, or the words of each example of a text."""
    from elmo_jax.tasks.formats.lines import suffix_of

    texts, reads_documents = trained.task.texts_per_example, trained.task.document_level
    reads_texts = trained.task.splitter(trained.config) is not None
    if options.format == "data" and options.input in (None, "-"):
        raise UserError("--format data: needs a file, --input FILE")
    if options.text:
        if len(options.text) != texts:
            raise UserError(f"--text: this task has {texts} texts per example, got {len(options.text)}; quote each one")
        return _examples(options.text, "--text", options.format, trained)
    where = f"--input {options.input}"
    if options.input != "-" and options.format in ("auto", "data"):
        of_training = [suffix_of(source) for source in files.listed(trained.config.data.train)]
        if options.format == "data" or suffix_of(options.input) not in TEXT:
            return trained.read(options.input)
        if suffix_of(options.input) in of_training:
            try:
                return trained.read(options.input)
            except UserError as error:
                raise UserError(f"{error}; if this is running text, give --format raw") from None
    try:
        content = _content(options.input).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error.reason}); convert the file") from None
    lines = [line for line in map(str.strip, content[:10_000].split("\n")) if line and not line.startswith("# ")]
    first = lines[0] if lines else ""
    column = getattr(trained.config.data, "text", None)  # of tasks that read tables
    has_columns = texts == 1 and ("\t" in first or column in first.split(",") or _is_annotated(lines[:9]))
    if options.format == "auto" and (first.startswith('{"') or has_columns):
        kind = "JSON" if not has_columns else "a tree" if first.startswith("(") else "columns"
        raise UserError(f"{where}: {kind} in place of text; give a file whose name has the ending, or --format raw")
    by_line = texts > 1 or reads_texts or (options.format == "lines" and not reads_documents)
    if not by_line or not content:
        return _examples([content], where, options.format, trained)
    examples = []
    for number, line in enumerate(_lines(content), 1):
        parts = line.split("\t") if texts > 1 else [line]
        if len(parts) != texts:
            raise UserError(f"{where}, line {number}: expected {texts} texts separated by tabs")
        examples += _examples(parts, f"{where}, line {number}", options.format, trained)
    return examples


def _is_annotated(lines: Sequence[str]) -> bool:
    """Returns whether a file begins as one of CoNLL-2003 or CoNLL-2012 does, or with a tree of the treebank."""
    if lines and re.match(r"-DOCSTART-|#begin document|\([0-4] \([0-4] ", lines[0]):
        return True
    rows = [line.split() for line in lines]
    are_tags = all(len(row) > 1 and re.fullmatch("O|[BIESLUM]-.+", row[-1]) for row in rows)
    return are_tags and len(rows) > 2 and len({*map(len, rows)}) == 1 and any(row[-1] == "O" for row in rows)


def _content(name: str) -> bytes:
    from elmo_jax.text_files import open_text, reading

    path = Path("/dev/stdin") if name == "-" else files.local(name)
    with reading(path):
        if name == "-":
            return sys.stdin.buffer.read()
        if path.is_fifo():  # which `open_text` refuses, since most of its users read twice
            return path.read_bytes()
        with open_text(path) as file:
            return file.read()


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _examples(contents: Sequence[str], where: str, format: str, trained: "TrainedTask") -> list[Any]:
    """Returns the inputs in the text, or texts, of one example; `where` names the texts in errors."""
    from elmo_jax.data.prepare.text import UNSPACED, is_unspaced
    from elmo_jax.words import split_words

    if any(not content.strip() for content in contents):
        raise UserError(f"{where}: has no words")
    if format != "lines":
        try:
            return trained.split(*contents)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    if any(is_unspaced(content, are_words=True) for content in contents):
        raise UserError(f"{where}: {UNSPACED}")
    rows = [list(filter(None, map(split_words, _lines(content)))) for content in contents]
    if trained.task.document_level:
        return rows
    texts = tuple([word for row in sentences for word in row] for sentences in rows)
    return [texts if trained.task.texts_per_example > 1 else texts[0]]
