"""The context-free vectors of a word list, written (`elmo-jax embed --words`) and used as a cache (`CachedWords`).

The format is bilm-tf's for a cache of token vectors: an HDF5 file with the dataset `embedding` [N, P]. Next to it,
an attribute says which biLM and which words the vectors are of, since neither can be seen from the vectors. A file of
another program has no such attribute.

Shapes: N words of the list or the cache, P projection, B sentences, T words of the longest sentence, W characters, U
distinct words outside the cache.
"""

import itertools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmo_jax.characters import MAX_CHARACTERS, encode_chars
from elmo_jax.checkpoints.hdf5_files import check_fits, check_stored, new_hdf5, node_of, opened, stored_bytes
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import check_sentences
from elmo_jax.embedding.word_table import CHUNK, check_word
from elmo_jax.errors import UserError
from elmo_jax.files import atomic_file, local, writing
from elmo_jax.runs.progress import Progress
from elmo_jax.text_files import error_at, read_lines, scan_lines
from elmo_jax.words import split_words

_DATASET, _DESCRIPTION = "embedding", "elmo_jax"
_DESCRIPTION_BYTES = 1 << 16  # the most that is read of the attribute
_WORDS_AT_ONCE = 8 * CHUNK

_log = logging.getLogger(__name__)


def embed_words(bilm: EmbeddingBiLM, vocabulary: Path, out: Path) -> int:
    """Writes the context-free vectors of a word list to an HDF5 file, and returns the number of words.

    The list is a UTF-8 file with one word per line, of which `<S>` and `</S>` are the boundary tokens.
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
        writer.file.attrs[_DESCRIPTION] = json.dumps({"bilm": bilm.vectors_fingerprint, "words": digest})
        dataset = writer.file.create_dataset(_DATASET, (count, bilm.config.lstm.projection), np.float32)
        for start in range(0, count, _WORDS_AT_ONCE):
            words = [line.text for line in itertools.islice(lines, _WORDS_AT_ONCE)]
            dataset[start : start + len(words)] = bilm.words(words)
            writer.check()
            progress.add(len(words))
    return count


class CachedWords:
    """A cache of word vectors, which makes the input of `ELMo` for sentences of these and other words.

    A cache without words is useful too, since each distinct word of a batch is encoded only once. `CachedWords(words,
    vectors)` makes a cache of N words.

    Attributes:
      vectors: float32 [N, P] the cached vectors.
      max_characters: W, that of the biLM.
      fingerprint: the `vectors_fingerprint` of the biLM that made them; "" if it is not known, to omit the check.

    Raises:
      UserError: the vectors do not have one row per word.
    """

    def __init__(
        self, words: Sequence[str], vectors: np.ndarray, max_characters: int = MAX_CHARACTERS, fingerprint: str = ""
    ) -> None:
        self.vectors = np.asarray(vectors, np.float32)
        if self.vectors.ndim != 2 or len(words) != len(self.vectors):
            shape = self.vectors.shape
            raise UserError(f"{len(words)} words for vectors of shape {shape}; expected [N, P], one row per word")
        self.max_characters, self.fingerprint = max_characters, fingerprint
        self._rows = {word: row for row, word in reversed(list(enumerate(words, 1)))}

    @classmethod
    def read(
        cls, vocabulary: str | os.PathLike[str], cache: str | os.PathLike[str], max_characters: int = MAX_CHARACTERS
    ) -> "CachedWords":
        """Reads a word list and its vectors, in the format of `elmo-jax embed --words` and of bilm-tf.

        Args:
          vocabulary: a UTF-8 file with one word per line.
          cache: an HDF5 file with the dataset `embedding` [N, P]. If it does not say which biLM it is of, as a file of
            another program, there is a warning.
          max_characters: W, that of the biLM.

        Raises:
          UserError: a file cannot be read or does not have this format, or the vectors are of other words.
        """
        vocabulary, cache = local(vocabulary), local(cache)
        words, digest = [line.text for line in read_lines(vocabulary)], scan_lines(vocabulary)[1]
        where = f"{cache}: dataset '{_DATASET}'"
        with opened(cache, "a cache of token vectors") as file:
            node = node_of(file, _DATASET, where)
            if not isinstance(node, h5py.Dataset) or node.ndim != 2 or node.dtype.kind != "f":
                problem = "is missing, or is not [words, dimension] of floats; make it with embed --words"
                raise UserError(f"{where} {problem}")
            if node.shape[0] != len(words):
                raise UserError(f"{cache}: {node.shape[0]} vectors for the {len(words)} words of {vocabulary}")
            check_stored(node, where)
            check_fits(stored_bytes(node), cache)
            description = _read_description(file, cache)
            vectors = node[()]
        if not description:
            _log.warning("%s: does not say which biLM it is of, so it cannot be checked; embed --words says it", cache)
        elif digest != description["words"]:
            raise UserError(f"{cache}: the vectors are not of the words of {vocabulary} in this order; make them again")
        return cls(words, vectors, max_characters, description.get("bilm", ""))

    def __call__(
        self, sentences: Sequence[Sequence[str]], rows: int = 0, steps: int = 0, others: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Makes the input of `ELMo`.

        The minimal sizes let batches have the same shape, so that no further program is compiled.

        Args:
          sentences: B lists of words.
          rows: the minimal B; rows are added up to it.
          steps: the minimal T; positions are added up to it.
          others: the minimal U; words outside the cache are added up to it.

        Returns:
          The raw character ids of the distinct words outside the cache, int32 [U, W], and the words, int32 [B, T]: 0
          beyond the end of a sentence, n for row n - 1 of the cache, -n for row n - 1 of the character ids.

        Raises:
          UserError: a sentence is a string, or a word is not a string or cannot be encoded.
        """
        check_sentences(sentences)
        longest = max(map(len, sentences), default=0)
        words = np.zeros((max(rows, len(sentences)), max(steps, longest)), np.int32)
        new_words: dict[str, int] = {}
        for row, sentence in enumerate(sentences):
            for step, word in enumerate(sentence):
                known = self._rows.get(word)
                if known is None:
                    check_word(word, self.max_characters)
                    known = -1 - new_words.setdefault(word, len(new_words))
                words[row, step] = known
        characters = encode_chars([*new_words] + [""] * max(max(others, 1) - len(new_words), 0), self.max_characters)
        return characters.astype(np.int32), words


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
