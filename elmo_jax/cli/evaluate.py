"""Defines the command `evaluate`."""

import argparse

from elmo_jax.cli import options as shared
from elmo_jax.cli.values import check_distinct, downloaded, output, source, whole
from elmo_jax.files import write_json, write_text


def add_command(commands: shared.Commands) -> None:
    """Adds the command `evaluate`."""
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
