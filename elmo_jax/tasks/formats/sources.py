"""Reads the examples of a task from files or from a split of a TFDS dataset."""

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmo_jax.data.prepare.text import UNSPACED, is_unspaced, raw_sentences
from elmo_jax.errors import UserError
from elmo_jax.files import listed, local
from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.task import Task, Use, repeated_id
from elmo_jax.tasks.registry import import_object, one_line
from elmo_jax.text_files import error_at, read_lines

_PLACEHOLDERS = ("[WORD]", "_")  # of OntoNotes and PropBank, and of Universal Dependencies
_BEGINNING = 10_000  # the number of words by which a script without spaces is recognized
_ENOUGH_WORDS = 20  # in a text of this length, a word that makes up more than half is a placeholder
_BRACKETED = re.compile(r"(.+)\[([^\[\]]*)\]")
_SLICE = re.compile(r"(-?\d*):(-?\d*)")


def read_part(task: Task[Any, Any], config: TaskConfig, name: str) -> list[Any]:
    """Returns the examples of `data.train`, `data.dev` or `data.test`; an empty list if no source is given."""
    sources: str = getattr(config.data, name)
    use: Use = "training" if name == "train" else "evaluation"
    examples = [example for source in listed(sources) for example in read_source(task, config, source, use)]
    if name != "train" and task.ids_are_keys and (twice := repeated_id(examples)) is not None:
        problem = f"the sources {sources} have two examples with the id {twice!r}"
        raise UserError(f"config.data.{name}: {problem}; remove one")
    return examples


def read_source(task: Task[Any, Any], config: TaskConfig, source: str, use: Use) -> list[Any]:
    """Returns the examples of one source, a path or `tfds:NAME[:SPLIT]`; see `Task.read`."""
    if source.lower().startswith("tfds:"):
        examples = _read_tfds(task, config, source)
    else:
        path = str(local(source))
        examples = _read_with(task, path, config, use) if config.data.reader else task.read(path, config, use)
    if not examples:
        raise UserError(f"{source}: has no examples of the task {task.name}")
    _check_words(source, [row for example in examples for text in task.texts(example) for row in text])
    return examples


def _read_with(task: Task[Any, Any], path: str, config: TaskConfig, use: Use) -> list[Any]:
    reader = import_object(config.data.reader, "config.data.reader")
    try:
        examples = list(reader(path, config, use))
        for example in examples:
            task.size(example)
            words = [word for text in task.texts(example) for row in text for word in row]
            if use != "prediction" and words and not (getattr(example, "tags", "-") and getattr(example, "label", "-")):
                raise UserError(f"config.data.reader: an example of {path} is not annotated: {' '.join(words)[:40]!r}")
        return examples
    except UserError:
        raise
    except Exception as error:  # it is the user's own code
        raise UserError(f"config.data.reader: {config.data.reader} cannot read {path}: {one_line(error)}") from None


def split_texts(task: Task[Any, Any], config: TaskConfig, *texts: str) -> list[Any]:
    """Returns the inputs of `TrainedTask.predict` in the running text, or texts, of one example.

    They are one if an example is a whole text, and otherwise one per sentence. Words are those of the training's texts
    or, if its files have words, those of the Moses tokenizer for `data.language`.
    """
    are_words = getattr(config.data, "words", None) == "spaces"
    if any(is_unspaced(text, are_words) for text in texts):
        raise UserError(UNSPACED)
    if split := task.splitter(config):
        words = tuple(map(split, texts))
        return [words if task.texts_per_example > 1 else words[0]]
    sentences = list(raw_sentences(texts[0].split("\n"), language=config.data.language))
    return [sentences] if task.document_level else sentences


def _check_words(source: str, rows: Sequence[Sequence[str]]) -> None:
    counts = Counter(word for row in rows for word in row)
    word, most = counts.most_common(1)[0] if counts else ("", 0)
    hidden = next((row[0] for row in rows if len(row) > 1 and row[0] in _PLACEHOLDERS and len(set(row)) == 1), None)
    if hidden is None and 2 * most > counts.total() and (word in _PLACEHOLDERS or counts.total() >= _ENOUGH_WORDS):
        hidden = word
    if hidden is not None:
        remedy = "the program that comes with the annotation, such as skeleton2conll or map_all_to_conll.py"
        problem = f"words are withheld, {counts[hidden]:,} of {counts.total():,} are {hidden!r}"
        raise UserError(f"{source}: {problem}; fill them in with {remedy}")
    beginning = itertools.islice(itertools.chain.from_iterable(rows), _BEGINNING)  # each use of a word counts
    if is_unspaced(" ".join(beginning), are_words=True):
        raise UserError(f"{source}: {UNSPACED}")


def _read_tfds(task: Task[Any, Any], config: TaskConfig, source: str) -> list[Any]:
    from elmo_jax.data.blocks import quiet_tfds
    from elmo_jax.data.prepare.tfds_text import prepared_builder, read_split, split_name

    if not task.tfds_features:
        raise UserError(f"{source}: no TFDS dataset has examples of the task {task.name}; give files")
    dataset, split = split_name(source)

    def check(source: str, features: Any) -> None:
        if missing := sorted(set(task.tfds_features) - set(features)):
            expected = ", ".join(task.tfds_features)
            raise UserError(f"{source}: expected a dataset with the features {expected}; it has no {missing[0]}")

    with quiet_tfds():
        builder, _ = prepared_builder(source, dataset, split, check)
        examples = read_split(source, builder, split)
        records = examples.__getitems__(list(range(len(examples))))
        return task.from_tfds(source, builder.info.features, records, config)


def split_brackets(source: str) -> tuple[Path, slice | str]:
    """Divides `PATH[first:end]` into the path and a slice, as in Python, and `PATH[TEXT]` into the path and the text.

    Without brackets, the slice is that of everything. A file whose own name ends with brackets is read whole.
    """
    match = _BRACKETED.fullmatch(source)
    if not match or os.path.exists(source):  # False also for what is too long for a name
        return Path(source), slice(None)
    bounds = _SLICE.fullmatch(match[2])
    if not bounds:
        return Path(match[1]), match[2]
    return Path(match[1]), slice(*(int(bound) if bound.strip("-") else None for bound in bounds.groups()))


def files_of(source: str, endings: tuple[str, ...]) -> tuple[list[Path], slice]:
    """Returns the files of a source, and the slice of the examples in them.

    Args:
      source: a file, or a folder for the files below it whose names have one of the endings, in the order of their
        paths, and only those with `gold_conll` if there are any; `PATH[:80]`, of which the slice is returned; or
        `FOLDER[LIST]`, the files of the documents that are named in a file, one per line, as the lists of CoNLL-2012's
        splits are (`bc/cctv/00/cctv_0001`).
      endings: the endings of names.
    """
    path, part = split_brackets(source)
    if not path.is_dir() or part == "":
        return ([Path(source)], slice(None)) if isinstance(part, str) else ([path], part)
    every = sorted(file for file in path.rglob("*") if file.name.endswith(endings))
    # OntoNotes has each document twice, with gold and with automatic annotation.
    every = [file for file in every if file.name.endswith("gold_conll")] or every
    if not every:
        raise UserError(f"{path}: has no files whose names end with {', '.join(endings)}")
    if not isinstance(part, str):
        return every, part
    by_name: defaultdict[str, list[Path]] = defaultdict(list)
    for file in every:
        by_name[file.name.partition(".")[0]].append(file)
    chosen, listing = [], local(part)
    for number, text in read_lines(listing):
        if name := text.strip():
            *folders, document = Path(name).parts
            matches = [file for file in by_name[document] if [*file.parts][-1 - len(folders) : -1] == folders]
            if len(matches) != 1:
                expected = f"one file in {path} whose name ends with {', '.join(endings)}, found {len(matches)}"
                raise error_at(listing, number, f"{name!r}: expected {expected}")
            chosen += matches
    if not chosen:
        raise UserError(f"{listing}: the list is empty; expected names of documents, one per line")
    return chosen, slice(None)
