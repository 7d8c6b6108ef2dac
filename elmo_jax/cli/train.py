"""Defines the commands `pretrain`, `finetune` and `evaluate`."""

import argparse
import dataclasses
from typing import TYPE_CHECKING

from elmo_jax.cli import options as shared
from elmo_jax.cli.values import anywhere, check_distinct, downloaded, local, number, output, source, whole
from elmo_jax.errors import UserError
from elmo_jax.files import write_json, write_text

if TYPE_CHECKING:
    from elmo_jax.config import Config


def add_command(commands: shared.Commands) -> None:
    """Adds the commands `pretrain`, `finetune` and `evaluate`."""
    parser = commands.add_parser(
        "pretrain",
        help="pretrain a biLM, or resume a run",
        description="Pretrains a biLM. If a run was stopped or killed, run the command again to resume it.",
        epilog="Every setting can be overridden (--config.train.batch_size=64 --config.data.corpus=data/mine); elmo-jax"
        " settings FILE lists them all.",
    )
    shared.add_run_options(parser)
    shared.add_process_options(parser)
    parser.set_defaults(run=_pretrain, takes_settings=True)

    parser = commands.add_parser(
        "finetune",
        help="fine-tune a biLM on the text of a domain",
        description="Fine-tunes a biLM on the text of a domain, and reports its perplexity before and after, on the"
        " domain and on the text that it was trained on. If a run was stopped or killed, run the command again to"
        " resume it.",
        epilog="Settings are given as --config.KEY=VALUE or in the --config file. Without a file, they are the defaults"
        " for one epoch, with the batch, the optimizer and the precision that the model was trained with. `elmo-jax"
        " settings` lists them with their meaning; those of `finetune` apply to fine-tuning only.",
    )
    shared.add_model_options(parser, "--from")
    data = f"{shared.SOURCES}; or a prepared corpus"
    parser.add_argument("--data", nargs="+", type=source, required=True, metavar="SOURCE", help=data)
    parser.add_argument("--workdir", type=anywhere, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--epochs", type=number(0, 1e6), metavar="N", help="number of times that the text is read")
    parser.add_argument("--config", type=local, metavar="FILE", help="a Python file with the settings of the training")
    original = "text on which forgetting is measured (default: the held-out text of the run that trained the model)"
    parser.add_argument("--original", nargs="+", type=source, metavar="SOURCE", help=original)
    shared.add_process_options(parser)
    shared.add_split_options(parser)
    shared.add_text_options(parser)
    parser.set_defaults(run=_finetune, takes_settings=True)
    _add_evaluate(commands)


def _add_evaluate(commands: shared.Commands) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="measure the perplexity of a biLM on a text",
        description="Prints the forward, backward and average perplexity of a biLM on a text, with the full softmax.",
    )
    shared.add_model_options(parser, own_vocabulary=False)
    parser.add_argument("--data", nargs="+", type=source, required=True, metavar="SOURCE", help=shared.SOURCES)
    per_sentence = "write the log-probabilities of each sentence to FILE"
    parser.add_argument("--per-sentence", type=output, metavar="FILE", help=per_sentence)
    parser.add_argument("--json", type=output, metavar="FILE", help="write the metrics to FILE as JSON")
    rows = "number of rows that the text is divided into (default: that of the model's held-out evaluation)"
    parser.add_argument("--batch-size", type=whole(1, 65_536), metavar="N", help=rows)
    words = (
        "count the words that are not in FILE (one per line, or an export) as <UNK>, to compare biLMs over one"
        f" vocabulary; or the {shared.VOCABULARY}"
    )
    parser.add_argument("--vocab", type=downloaded, metavar="FILE", dest="words", help=words)
    precision = "type of the operands of matrix products (default: that of the training)"
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help=precision)
    shared.add_text_options(parser)
    parser.set_defaults(run=_evaluate)


def _pretrain(options: argparse.Namespace) -> int:
    name, workdir = shared.run_of(options, "pretrain_")
    with shared.connection(options):
        from elmo_jax.config_file import load_config
        from elmo_jax.distributed.collectives import raise_on_all
        from elmo_jax.distributed.cpu import divide_cpu
        from elmo_jax.runs.result import print_summary
        from elmo_jax.training.pretrain import pretrain
        from elmo_jax.training.training_report import table

        # The processes are connected already, so that jax.device_count() in the file counts the devices of all of them.
        with raise_on_all():
            config = load_config(options.config, options.overrides)
            _check(options, config)
        divide_cpu(config.model.lstm, config.train.batch_size // config.train.accumulate)
        return print_summary(pretrain(config, workdir, name), workdir, table)


def _check(options: argparse.Namespace, config: "Config") -> None:
    """Refuses settings that have no effect, or are the default of another optimizer."""
    train, optimizer = config.train, config.train.optimizer
    given = any(override.startswith("--config.train.epochs=") for override in options.overrides)
    if given and train.epochs and train.steps:
        raise UserError(f"--config.train.epochs: has no effect, as config.train.steps is {train.steps}; set that to 0")
    if optimizer.name == "adam" and optimizer.learning_rate == type(optimizer).learning_rate:
        what = f"expected one for Adam, such as 0.001, got {optimizer.learning_rate}, the default for Adagrad"
        raise UserError(f"config.train.optimizer.learning_rate: {what}")


def _finetune(options: argparse.Namespace) -> int:
    with shared.connection(options):
        from elmo_jax.config_file import load_config
        from elmo_jax.data.prepare.options import PrepareOptions
        from elmo_jax.distributed.collectives import check_equal, raise_on_all
        from elmo_jax.distributed.cpu import divide_cpu
        from elmo_jax.finetuning.finetune import Text, finetune
        from elmo_jax.finetuning.recipe import table
        from elmo_jax.finetuning.source import open_source
        from elmo_jax.runs.result import print_summary

        with raise_on_all():
            if options.config is not None:
                config = load_config(options.config, options.overrides)
            source = open_source(shared.model_source(options))
            if options.config is None:
                adam = "--config.train.optimizer.name=adam" in options.overrides
                config = load_config(None, options.overrides, source.settings(adam))
            given = {override.split("=")[0] for override in options.overrides}
            if options.epochs is not None and "--config.train.steps" in given and config.train.steps:
                raise UserError("--epochs: --config.train.steps already says how long to train; give one of them")
            _check(options, config)
            if "--config.data.corpus" in given and options.config is None:  # a file may read the corpus
                raise UserError("--config.data.corpus: has no effect, since the text is that of --data; leave it out")
            if (setting := "--config.finetune.optimizer") in given and not source.checkpoint:
                raise UserError(f"{setting}: has no effect without a checkpoint of bilm-tf; leave it out")
            every, number = "--config.evaluation.every", config.finetune.evaluations
            if every in given and config.evaluation.every and number:
                raise UserError(f"{every}: has no effect, as config.finetune.evaluations is {number}; set that to 0")
        check_equal(source.bilm.fingerprint, "parameters of the model")
        if options.epochs is not None:
            train = dataclasses.replace(config.train, epochs=options.epochs, steps=0)
            config = dataclasses.replace(config, train=train)
        divide_cpu(source.bilm.config.lstm, config.train.batch_size // config.train.accumulate)
        prepare = PrepareOptions(
            shared.text_options(options),
            heldout_fraction=options.heldout_fraction,
            heldout_sources=options.heldout,
            workers=options.workers,
        )
        text = Text(options.data, prepare)
        ended = finetune(source, config, text, options.workdir, options.workdir.name, options.original)
        return print_summary(ended, options.workdir, table)


def _evaluate(options: argparse.Namespace) -> int:
    from elmo_jax.checkpoints.bilm_tf import checkpoint_of
    from elmo_jax.training.evaluate_text import evaluate_text

    outputs = {"--json": options.json, "--per-sentence": options.per_sentence}
    inputs = {"MODEL": options.model} | ({"--vocab": options.words} if options.words else {})
    check_distinct(outputs, inputs, options.data)
    model = shared.model_source(options)
    has_rows = options.words and checkpoint_of(model)  # the lines are its rows, and an export has them in another order
    with shared.words_file(None if has_rows else options.words) as (words, _):
        result = evaluate_text(
            model,
            options.data,
            shared.text_options(options),
            batch_size=options.batch_size,
            words=options.words if has_rows else words,
            per_sentence=options.per_sentence is not None,
            precision=options.precision,
        )
    print(result.describe(), flush=True)  # before the files, for which a disk may have no room
    if options.per_sentence:
        write_text(options.per_sentence, result.sentence_table)
    if options.json:
        write_json(options.json, result.as_dict())
    return 0
