"""Takes a corpus that has been prepared already, where text is expected."""

import dataclasses
from collections.abc import Sequence

from elmo_jax.data.corpus import REPORT, Corpus
from elmo_jax.data.prepare.sources import TextOptions
from elmo_jax.errors import UserError
from elmo_jax.files import local


def prepared_corpus(sources: Sequence[str]) -> Corpus | None:
    """Opens the one source if it is the folder of a prepared corpus; returns None if it is not, or if there are others.

    Raises:
      UserError: the corpus is damaged.
    """
    if len(sources) != 1 or not sources[0].strip():
        return None
    folder = local(sources[0])
    return Corpus.open(folder) if (folder / REPORT).exists() else None


def check_no_options(name: str, options: TextOptions, *others: str) -> None:
    """Raises `UserError` if there are options that tell how to prepare text, which has been prepared.

    Args:
      name: the prepared corpus, as the user names it.
      options: the options for reading text, of which those that are not the defaults were given.
      *others: the names of further options that were given.
    """
    changed = (field.name for field in dataclasses.fields(options) if getattr(options, field.name) != field.default)
    given = [*(f"--{option}" for option in changed), *others]
    if given:
        raise UserError(
            f"{name}: a prepared corpus, on which {' and '.join(given)} {'has' if len(given) == 1 else 'have'} no"
            " effect; leave that out, or give the text itself"
        )
