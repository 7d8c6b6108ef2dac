"""Defines the commands `task train`, `task evaluate` and `task predict`."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from etils import epath

from elmo_jax import files
from elmo_jax.cli.options import Commands, add_choice
from elmo_jax.cli.values import anywhere, check_distinct, local, output, source, tolerant_output, whole
from elmo_jax.errors import UserError
from elmo_jax.files import write_json, write_text


def add_command(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Adds the command `task` with its three subcommands."""
    task = commands.add_parser(
        "task",
        help="train, evaluate and use a task model",
        description="Trains, evaluates and applies task models with and without ELMo: parts of speech, named entities,"
        " sentiment, textual entailment, semantic roles, coreference and question answering.",
    )
    inner = task.add_subparsers(required=True, metavar="COMMAND")
    _add_train(inner)
    _add_evaluate(inner)
    _add_predict(inner)


def _add_train(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "train",
        help="train a task model with each seed, or resume a run",
        description="Trains a task model with each seed of the config. If a run was stopped or killed, run the command"
        " again to resume it.",
        epilog="Every setting can be overridden (--config.bilm=english --config.seeds='(0,1,2)'); elmo-jax settings"
        " FILE lists them all.",
    )
    parser.add_argument("--config", type=local, required=True, metavar="FILE", help="the Python file of the experiment")
    parser.add_argument("--workdir", type=anywhere, metavar="DIR", help="the run's folder (default: runs/NAME_OF_FILE)")
    parser.set_defaults(run=_train, takes_settings=True)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=anywhere, metavar="RUN", help="the folder of a task's run")
    parser.add_argument(
        "--seed", type=whole(0), metavar="N", help="seed of the model that is used (default: the first one)"
    )
    parser.add_argument("--ensemble", action="store_true", help="average the predictions of all seeds")


def _add_evaluate(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "evaluate",
        help="evaluate a task model on annotated text",
        description="Prints the official metrics of a trained task model on annotated examples. A run keeps"
        " pretrained word vectors only for the words of its data.train, data.dev and data.test; other words are unknown"
        " to it, so give a file as data.test when training to use the vectors of its words.",
    )
    _add_model(parser)
    parser.add_argument(
        "--data", type=source, required=True, metavar="FILE", help="annotated examples in the format of data.test"
    )
    parser.add_argument("--json", type=output, metavar="FILE", help="write the metrics to FILE as JSON")
    parser.set_defaults(run=_evaluate)


def _add_predict(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "predict",
        help="apply a task model to text",
        description="Prints predictions for text from the command line or a file. A task with two texts per example"
        " (premise and hypothesis, question and paragraph) takes both after --text, or a file whose lines have both"
        " separated by a tab. Words without a pretrained vector in the run are unknown to it, as in task evaluate. For"
        " a task that was trained with elmo.layer_norm, a prediction also depends on the other texts that are given"
        " with it.",
    )
    _add_model(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", metavar="TEXT", help="the text, or both texts, of one example")
    source.add_argument("--input", metavar="FILE", help="a file of text; - for standard input")
    add_choice(
        parser,
        "--format",
        ("raw", "lines"),
        "raw: running text, which is split into sentences and words; lines: one tokenized sentence per line",
    )
    add_choice(
        parser,
        "--output",
        ("text", "json", "file"),
        "text for a person to read, JSON lines, or the task's own file format",
    )
    parser.add_argument("--out", type=output, metavar="FILE", help="the file to write (default: standard output)")
    parser.set_defaults(run=_predict)


def _train(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_file, with_overrides
    from elmo_jax.runs.result import tell_end
    from elmo_jax.tasks.core.run import train_task
    from elmo_jax.tasks.core.task_report import table
    from elmo_jax.tasks.registry import task_config

    name = options.config.stem.removeprefix("task_")
    workdir = options.workdir or epath.Path("runs") / name
    config = task_config(with_overrides(load_file(options.config), options.overrides))
    return tell_end(train_task(config, workdir, name), workdir, table)


def _load(options: argparse.Namespace) -> Any:
    from elmo_jax.tasks.core.trained_task import load_task

    if options.seed is not None and options.ensemble:
        raise UserError("--seed chooses one model and --ensemble averages all; remove one of the two options")
    return load_task(options.run_folder, None if options.seed is None else [options.seed], options.ensemble)


def _evaluate(options: argparse.Namespace) -> int:
    check_distinct({"--json": options.json}, {"RUN": options.run_folder, "--data": options.data})
    trained = _load(options)
    metrics = trained.evaluate(options.data)
    print(" · ".join(f"{k} {value if isinstance(value, int) else f'{value:.2f}'}" for k, value in metrics.items()))
    if options.json:
        write_json(options.json, metrics)
    return 0


def _predict(options: argparse.Namespace) -> int:
    from elmo_jax.runs.progress import print_above

    if options.input not in (None, "-"):
        check_distinct({"--out": options.out}, {"--input": files.local(options.input)})
    trained = _load(options)
    inputs = list(_inputs(options, trained.texts_per_example, trained.reads_documents))
    silent = trained.without_examples(inputs)
    if silent:
        message = f"{silent} of {len(inputs)} sentences have no word that is a predicate in the training text"
        print(f"elmo-jax: {message}; nothing is predicted for them", file=sys.stderr)
    parts: Iterator[str]
    more: dict[str, str] = {}
    if options.output == "json":
        parts = (json.dumps(value, ensure_ascii=False) + "\n" for value in trained.stream(inputs))
    elif options.output == "file":
        more = trained.written(inputs)
        parts = iter([more.pop("")])
    else:
        parts = (f"{text}\n" for text in trained.shown(inputs))
    if options.out:
        write_text(options.out, "".join(parts))
        for ending, text in more.items():
            write_text(options.out.with_name(f"{options.out.name}{ending}"), text)
    else:
        tolerant_output("utf-8" if options.output in ("json", "file") else None)  # data, whatever the locale
        for part in parts:
            print_above(part)
    return 0


def _inputs(options: argparse.Namespace, texts: int, documents: bool) -> Iterator[Any]:
    """Yields the words of each example: one list, or a tuple of one list per text."""
    if options.text:
        if len(options.text) != texts:
            raise UserError(f"--text: this task has {texts} texts per example, got {len(options.text)}; quote each one")
        yield from _examples(options.text, "--text", options.format, texts, documents)
        return
    where = f"--input {options.input}"
    try:
        lines = (sys.stdin.buffer if options.input == "-" else files.local(options.input).open("rb")).read()
        content = lines.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error.reason}); convert the file") from None
    if texts == 1:
        yield from _examples([content], where, options.format, 1, documents)
        return
    for number, line in enumerate(_lines(content), 1):
        parts = line.split("\t")
        if len(parts) != texts:
            raise UserError(f"{where}, line {number}: expected {texts} texts separated by tabs")
        yield from _examples(parts, f"{where}, line {number}", options.format, texts, documents)


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _examples(contents: Sequence[str], where: str, format: str, texts: int, documents: bool) -> Iterator[Any]:
    """Yields the words of the examples in some texts; `where` names the texts in errors."""
    from elmo_jax.data.prepare.text import raw_sentences
    from elmo_jax.data.prepare.text_layout import UNSPACED, is_unspaced
    from elmo_jax.words import split_words

    found = []
    for text in contents:
        if is_unspaced(text, format == "lines"):
            raise UserError(f"{where}: {UNSPACED}")
        lines = _lines(text)
        sentences = [split_words(line) for line in lines] if format == "lines" else list(raw_sentences(lines))
        if not any(sentences):
            raise UserError(f"{where}: has no words")
        if format == "lines" and texts == 1 and not documents and [] in sentences:
            # A prediction per line is expected, and there is none for a line without words.
            raise UserError(f"{where}, line {sentences.index([]) + 1}: is empty; remove it, or use --format raw")
        found.append([sentence for sentence in sentences if sentence])
    if documents:
        yield found[0]
    elif texts == 1:
        yield from found[0]
    else:
        yield tuple([word for sentence in sentences for word in sentence] for sentences in found)
