"""A reader for another file format: a sentence per line, each word with its chunk after a slash."""

from pathlib import Path

from elmo_jax.tasks.core.config import TaskConfig
from elmo_jax.tasks.core.tagging import TaggedSentence
from elmo_jax.tasks.core.task import Use
from elmo_jax.text_files import read_lines


def read(source: str, config: TaskConfig, use: Use) -> list[TaggedSentence]:
    """Reads lines such as `He/B-NP runs/B-VP`."""
    pairs = [[item.split("/") for item in line.text.split()] for line in read_lines(Path(source))]
    return [TaggedSentence([word for word, _ in sentence], [tag for _, tag in sentence]) for sentence in pairs]
