"""The commands `task train`, `task evaluate` and `task predict`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from elmo_jax.cli.options import Commands, named_path
from elmo_jax.errors import UserError
from elmo_jax.files import write_json, write_text


def add_command(commands: Commands[argparse.ArgumentParser]) -> None:
    """Adds `task` with its three commands."""
    task = commands.add_parser(
        "task",
        help="train, evaluate and use a task model",
        description="Task models, with and without ELMo: part of speech, named entities, sentiment, inference, semantic"
        " roles, coreference and question answering.",
        allow_abbrev=False,
    )
    inner = task.add_subparsers(required=True, metavar="COMMAND")
    _add_train(inner)
    _add_evaluate(inner)
    _add_predict(inner)


def _add_train(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "train",
        help="train a task model with each seed, or go on with a run",
        description="Trains a task model with each seed of the config. The same command goes on with a run that was"
        " stopped or killed.",
        epilog="every setting can be overridden: --config.bilm=english --config.seeds='(0,1,2)'",
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the experiment, a Python file")
    parser.add_argument(
        "--workdir", type=named_path, metavar="DIR", help="the run's folder (default: runs/NAME_OF_FILE)"
    )
    parser.set_defaults(run=_train, takes_settings=True)


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=named_path, metavar="RUN", help="the folder of a task's run")
    parser.add_argument("--seed", type=int, metavar="N", help="which training is used (default: the first)")
    parser.add_argument("--ensemble", action="store_true", help="average the predictions of all seeds")


def _add_evaluate(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="the official metrics of a task model on annotated text",
        description="Prints the official metrics of a trained task model on annotated examples.",
        allow_abbrev=False,
    )
    _add_model(parser)
    parser.add_argument("--data", required=True, metavar="FILE", help="annotated examples, as data.test of the config")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the metrics")
    parser.set_defaults(run=_evaluate)


def _add_predict(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "predict",
        help="predictions of a task model for your text",
        description="Predicts for text from the command line or a file. A task with two texts per example (premise and"
        " hypothesis, question and paragraph) takes both after --text, or separated by a tab on each line of a file.",
        allow_abbrev=False,
    )
    _add_model(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", metavar="TEXT", help="the text, or both texts, of one example")
    source.add_argument("--input", metavar="FILE", help="a file of text; - for standard input")
    parser.add_argument(
        "--format",
        choices=("raw", "lines"),
        default="raw",
        help="raw: running text, split into sentences and words; lines: one tokenised sentence per line (%(default)s)",
    )
    parser.add_argument(
        "--output",
        choices=("text", "json", "file"),
        default="text",
        help="for a person to read, JSON lines, or the task's own file format (%(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file (default: standard output)")
    parser.set_defaults(run=_predict)


def _train(options: argparse.Namespace) -> int:
    from elmo_jax.config_file import load_file, with_overrides
    from elmo_jax.runs.report import tell_end
    from elmo_jax.tasks.registry import task_config
    from elmo_jax.tasks.report import table
    from elmo_jax.tasks.run import train_task

    name = options.config.stem.removeprefix("task_")
    workdir = options.workdir or epath.Path("runs") / name
    config = task_config(with_overrides(load_file(options.config), options.overrides))
    return tell_end(train_task(config, workdir, name), workdir, table)


def _load(options: argparse.Namespace) -> Any:
    from elmo_jax.tasks.saved import load_task

    if options.seed is not None and options.ensemble:
        raise UserError("--seed chooses one training and --ensemble takes all; leave out one of them")
    return load_task(options.run_folder, None if options.seed is None else [options.seed], options.ensemble)


def _evaluate(options: argparse.Namespace) -> int:
    trained = _load(options)
    metrics = trained.evaluate(options.data)
    print(" · ".join(f"{name} {value:.2f}" for name, value in metrics.items()))
    if options.json:
        write_json(options.json, metrics)
    return 0


def _predict(options: argparse.Namespace) -> int:
    trained = _load(options)
    inputs = list(_inputs(options, trained.texts_per_example, trained.reads_documents))
    if options.output == "json":
        found = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in trained.predict(inputs))
    elif options.output == "file":
        found = trained.written(inputs)
    else:
        found = "".join(f"{text}\n" for text in trained.shown(inputs))
    if options.out:
        write_text(options.out, found)
    else:
        sys.stdout.write(found)
    return 0


def _inputs(options: argparse.Namespace, texts: int, documents: bool) -> Iterator[Any]:
    """The words of each example: one list, or a tuple of as many lists as the task has texts."""
    if options.text:
        if len(options.text) != texts:
            raise UserError(f"--text: this task has {texts} texts per example, got {len(options.text)}; quote each one")
        yield from _examples(options.text, options.format, texts, documents)
        return
    try:
        lines = (sys.stdin.buffer if options.input == "-" else open(options.input, "rb")).read()
        content = lines.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"--input {options.input}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--input {options.input}: not UTF-8 ({error.reason}); convert the file") from None
    if texts == 1:
        yield from _examples([content], options.format, 1, documents)
        return
    for number, line in enumerate(content.splitlines(), 1):
        parts = line.split("\t")
        if len(parts) != texts:
            raise UserError(f"--input {options.input}, line {number}: expected {texts} texts with tabs between")
        yield from _examples(parts, options.format, texts, documents)


def _examples(contents: Sequence[str], format: str, texts: int, documents: bool) -> Iterator[Any]:
    from elmo_jax.data.prepare.text import raw_sentences

    found = [
        [line.split() for line in text.split("\n") if line.strip()]
        if format == "lines"
        else list(raw_sentences(text.split("\n")))
        for text in contents
    ]
    if documents:
        yield found[0]
    elif texts == 1:
        yield from found[0]
    else:
        yield tuple([word for sentence in sentences for word in sentence] for sentences in found)
