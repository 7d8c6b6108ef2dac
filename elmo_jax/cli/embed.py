"""Defines the commands `embed` and `neighbours`."""

import argparse

from elmo_jax.cli import options as shared
from elmo_jax.cli.values import local, number, source
from elmo_jax.errors import UserError
from elmo_jax.files import temporary_folder
from elmo_jax.words import split_words


def add_command(commands: shared.Commands) -> None:
    """Adds the commands `embed` and `neighbours`."""
    parser = commands.add_parser(
        "embed",
        help="write the vectors of sentences or words to HDF5 or NumPy files",
        description="Writes the vectors of sentences to an HDF5 file or a folder of NumPy files. The text has one"
        " tokenized sentence per line; dataset '0' belongs to the first line. All local devices share the work. Several"
        " processes, which must share the folder of the output, take a part of the lines each. If the command is"
        " interrupted, run it again to resume.",
    )
    shared.add_model_options(parser)
    parser.add_argument("text", type=local, metavar="sentences.txt", help="the text; with --words, one word per line")
    parser.add_argument("out", type=local, metavar="vectors.hdf5", help="the file, or the folder of --format npy")
    format = (
        "one HDF5 file, or a folder of NumPy files of at most 1,024 lines each, for large texts; in Python,"
        " elmo_jax.VectorShards reads the folder"
    )
    shared.add_choice(parser, "--format", ("hdf5", "npy"), format)
    words = "write the context-independent vectors of a word list: dataset 'embedding' [words, dim]"
    parser.add_argument("--words", action="store_true", help=words)
    layers = "all: vectors [layers + 1, T, dim]; otherwise [T, dim]"
    shared.add_choice(parser, "--layers", ("all", "top", "average", "mix"), layers)
    weights = "with --layers mix: the weight of each layer before the softmax, as in --weights=-0.5,0,1"
    parser.add_argument("--weights", metavar="W,W,…", help=weights)
    gamma = "with --layers mix: the scale (default: 1)"
    parser.add_argument("--gamma", type=number(), default=1.0, metavar="X", help=gamma)
    parser.add_argument("--mean-of-words", action="store_true", help="one vector per sentence, its words' mean: T is 1")
    index = "in HDF5, also write sentence_to_index, for programs that read AllenNLP's files"
    parser.add_argument("--sentence-index", action="store_true", help=index)
    shared.add_choice(parser, "--dtype", ("float32", "float16"), "type of the vectors")
    state = (
        "the LSTM state at the start of a line: zeros (reset); the state after the line before, as in bilm-tf"
        " (carry, slow); or the state after reading the line itself once (warm_up)"
    )
    shared.add_choice(parser, "--state", ("reset", "carry", "warm_up"), state)
    shared.add_choice(parser, "--precision", ("float32", "bfloat16"), "type of the operands of matrix products")
    shared.add_process_options(parser)
    parser.set_defaults(run=_embed)
    _add_neighbours(commands)


def _add_neighbours(commands: shared.Commands) -> None:
    parser = commands.add_parser(
        "neighbours",
        help="find the nearest neighbours of a word in context",
        description="Prints the words of a text whose vectors are nearest by cosine to that of a word in a sentence of"
        " the text or in a given sentence. The vectors are those of one layer in both directions.",
    )
    shared.add_model_options(parser)
    parser.add_argument("text", type=source, metavar="TEXT", help=shared.SOURCES)
    parser.add_argument("--word", required=True, metavar="WORD", help="the word, spelled as in the text")
    sentence = (
        "a tokenized sentence, or several, each with this option; the first occurrence of the word in it is taken"
        " (default: sentences of the text)"
    )
    parser.add_argument("--sentence", action="append", default=[], metavar="TEXT", help=sentence)
    among = (
        "compare with all words of the text, all of which are embedded first, or with the other uses of the same word,"
        " for which only the sentences with this word are embedded"
    )
    shared.add_choice(parser, "--among", ("words", "uses"), among)
    shared.add_whole(parser, "--occurrences", 1, 3, "without --sentence: number of occurrences of the word in the text")
    shared.add_whole(parser, "--number", 1, 10, "number of neighbours per occurrence")
    shared.add_whole(parser, "--layer", 0, 2, "layer of the vectors; 0 is the token layer")
    shared.add_whole(parser, "--around", 0, 12, "number of words printed on either side")
    cache = "folder in which the text's vectors are kept, which makes the next query fast"
    parser.add_argument("--cache", type=local, metavar="DIR", help=cache)
    shared.add_text_options(parser)
    parser.set_defaults(run=_neighbours)


def _embed(options: argparse.Namespace) -> int:
    from elmo_jax.embedding.bilm import load_bilm
    from elmo_jax.embedding.embed import CarryState
    from elmo_jax.embedding.embed_file import embed_file
    from elmo_jax.embedding.output_settings import Format, Output, Settings
    from elmo_jax.embedding.words_file import embed_words

    weights: tuple[float, ...] = ()
    if options.weights:
        try:
            weights = tuple(float(weight) for weight in options.weights.split(","))
        except ValueError:
            raise UserError(f"--weights: expected numbers separated by commas, got {options.weights!r}") from None
    settings = Settings(
        Output(options.layers),
        weights,
        options.gamma,
        options.dtype,
        CarryState(options.state),
        Format(options.format),
        options.mean_of_words,
        options.sentence_index,
    )
    if options.words and settings != Settings():
        others = "--layers, --weights, --gamma, --dtype, --state, --format, --mean-of-words and --sentence-index"
        raise UserError(f"--words writes one vector per word; remove {others}")
    with shared.connection(options):
        import jax

        from elmo_jax.distributed.collectives import is_primary, raise_on_all

        with raise_on_all():
            bilm = load_bilm(shared.model_source(options), options.precision)
        if options.words:
            if jax.process_count() > 1:
                raise UserError("--words: a word list is embedded by one process; give --processes 1")
            print(f"wrote the vectors of {embed_words(bilm, options.text, options.out):,} words to {options.out}")
            return 0
        lines = embed_file(bilm.on(jax.local_devices()), options.text, options.out, settings)
        if is_primary():
            print(f"wrote the vectors of {lines:,} lines to {options.out}")
    return 0


def _neighbours(options: argparse.Namespace) -> int:
    from elmo_jax.analysis.neighbours import nearest, nearest_uses, occurrence_in, occurrences, read_text
    from elmo_jax.embedding.bilm import load_bilm

    if options.cache and options.among == "uses":
        raise UserError("--cache: has no effect with --among uses, which embeds a few sentences; leave it out")
    bilm = load_bilm(shared.model_source(options))
    sentences = read_text(options.text, shared.text_options(options).in_language(bilm.language))
    queries = [occurrence_in(tuple(split_words(sentence)), options.word) for sentence in options.sentence]
    if not queries:
        queries = occurrences(sentences, options.word)[: options.occurrences]
        if not queries:
            raise UserError(f"{options.text}: the word {options.word!r} is not in the text; give a --sentence with it")
    if options.among == "uses":
        results = nearest_uses(bilm, sentences, queries, options.number, options.layer)
    else:
        with temporary_folder() as folder:
            results = nearest(options.cache or folder, bilm, sentences, queries, options.number, options.layer)
    for query, neighbours in zip(queries, results, strict=True):
        print(f"\n{query.shown(options.around)}")
        for neighbour in neighbours:
            print(f"  {neighbour.cosine:.3f}  {neighbour.occurrence.shown(options.around)}")
        if not neighbours:
            what = "use of the word" if options.among == "uses" else "word"
            print(f"  the text has no {what} outside this sentence")
    return 0
