"""Writes and reads the context-free vectors of a word list (`elmo-jax embed --words`, `CachedWords.read`).

The format is bilm-tf's for a cache of token vectors: an HDF5 file with the dataset `embedding` [N, P]. Next to it,
an attribute says which biLM and which words the vectors are of, since neither can be seen from the vectors. A file of
another program has no such attribute.

Shapes: N words, P projection.
"""

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmo_jax.checkpoints.hdf5_files import check_fits, check_stored, new_hdf5, node_of, opened, stored_bytes
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.word_table import CHUNK
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, writing
from elmo_jax.runs.progress import Progress
from elmo_jax.text_files import error_at, read_lines, scan_lines
from elmo_jax.words import split_words

_DATASET, _DESCRIPTION = "embedding", "elmo_jax"
_DESCRIPTION_BYTES = 1 << 16  # the most that is read of the attribute
_WORDS_AT_ONCE = 8 * CHUNK

_log = logging.getLogger(__name__)


def embed_words(bilm: EmbeddingBiLM, vocabulary: Path, out: Path) -> int:
    """Writes the context-free vectors of a word list.

    Args:
      bilm: the model.
      vocabulary: a UTF-8 file with one word per line; `<S>` and `</S>` are the boundary tokens.
      out: the HDF5 file to make, which appears when it is complete.

    Returns:
      The number of words.

    Raises:
      UserError: a file cannot be read or written, is not UTF-8, has no word, or has a line that is not one word; or
        `out` exists already.
    """
    count, digest = scan_lines(vocabulary)
    if not count:
        raise UserError(f"{vocabulary}: the file is empty; expected one word per line")
    if out.exists():
        raise UserError(f"{out}: exists; choose another name or remove it")
    for number, word in read_lines(vocabulary):
        if split_words(word) != [word]:
            kind = f"{word!r} has spaces or tabs" if split_words(word) else "has no word"
            raise error_at(vocabulary, number, f"{kind}; expected one word per line")
    lines = read_lines(vocabulary)
    with (
        writing(out),
        atomic_file(out) as temporary,
        new_hdf5(temporary) as writer,
        Progress("embedding", "words", count) as progress,
    ):
        writer.file.attrs[_DESCRIPTION] = json.dumps({"bilm": bilm.fingerprint, "words": digest})
        dataset = writer.file.create_dataset(_DATASET, (count, bilm.config.lstm.projection), np.float32)
        for start in range(0, count, _WORDS_AT_ONCE):
            words = [line.text for line in itertools.islice(lines, _WORDS_AT_ONCE)]
            dataset[start : start + len(words)] = bilm.words(words)
            writer.check()
            progress.add(len(words))
    return count


def read_words(vocabulary: Path, cache: Path) -> tuple[list[str], np.ndarray, str]:
    """Reads a word list and its vectors.

    Args:
      vocabulary: a UTF-8 file with one word per line.
      cache: an HDF5 file with the dataset `embedding` [N, P] of floats.

    Returns:
      The N words, their vectors [N, P], and the fingerprint of the biLM that made them; "" with a warning if the file
      does not say it.

    Raises:
      UserError: a file cannot be read or does not have this format, or the vectors are of other words.
    """
    words, digest = [line.text for line in read_lines(vocabulary)], scan_lines(vocabulary)[1]
    where = f"{cache}: dataset '{_DATASET}'"
    with opened(cache, "a cache of token vectors") as file:
        node = node_of(file, _DATASET, where)
        if not isinstance(node, h5py.Dataset) or node.ndim != 2 or node.dtype.kind != "f":
            raise UserError(f"{where} is missing, or is not [words, dimension] of floats; make it with embed --words")
        if node.shape[0] != len(words):
            raise UserError(f"{cache}: {node.shape[0]} vectors for the {len(words)} words of {vocabulary}")
        check_stored(node, where)
        check_fits(stored_bytes(node), cache)
        description = _read_description(file, cache)
        vectors = node[()]
    if not description:
        _log.warning("%s: does not say which biLM it is of, so this cannot be checked; embed --words says it", cache)
        return words, vectors, ""
    if digest != description["words"]:
        raise UserError(f"{cache}: the vectors are not of the words of {vocabulary} in this order; make them again")
    return words, vectors, description["bilm"]


def _read_description(file: h5py.File, cache: Path) -> dict[str, Any]:
    if _DESCRIPTION not in file.attrs:
        return {}
    try:
        if file.attrs.get_id(_DESCRIPTION).get_storage_size() <= _DESCRIPTION_BYTES:
            values = json.loads(file.attrs[_DESCRIPTION])
            return {key: str(values[key]) for key in ("bilm", "words")}
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise UserError(f"{cache}: attribute '{_DESCRIPTION}' is damaged; make the file again with embed --words")
