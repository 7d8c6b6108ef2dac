"""Blocks: the encoded text on disk, a TFDS dataset of ArrayRecord files.

A record is one int32 array of whole sentences, each `0` (`<S>`) and its words' ids: `[0, w, ..., 0, w, ...]`.
Records hold about `BLOCK_TOKENS` tokens, since one record a sentence reads 70 times slower. Any TFDS
reader opens the folder (`tfds.builder_from_directory(FOLDER).as_data_source()`), without TensorFlow.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID
from elmo_jax.data.tfds import quiet_tfds
from elmo_jax.errors import UserError

BLOCK_TOKENS = 1600
BLOCKS_A_SHARD = 16384  # about 26 M tokens, 50 MB; fixed, so that the files depend on the text alone
SPLITS = ("train", "heldout")

_FEATURE = "tokens"


def cut_blocks(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[np.ndarray]:
    """Cut text into blocks of whole sentences, in order, none across two blocks.

    Args:
        parts: consecutive parts of the text as (ids, lengths): int32 `[words]`, and int32 `[sentences]`
            words in each sentence.

    Yields:
        int32 `[tokens]`, at most `BLOCK_TOKENS` unless one sentence alone is longer.
    """
    waiting, waiting_lengths = np.zeros(0, np.int32), np.zeros(0, np.int64)
    for ids, lengths in parts:
        # Make room for each sentence's mark.
        marked = lengths.astype(np.int64) + 1
        ends = np.cumsum(marked)
        is_word = np.ones(ids.size + lengths.size, bool)
        is_word[ends - marked] = False
        tokens = np.zeros(is_word.size, np.int32)
        tokens[is_word] = ids
        waiting = np.concatenate([waiting, tokens])
        waiting_lengths = np.concatenate([waiting_lengths, marked])
        ends = np.cumsum(waiting_lengths)
        sentence = start = 0
        # A block is full only where a next sentence is there that does not fit.
        while len(ends) and ends[-1] - start > BLOCK_TOKENS:
            after = int(np.searchsorted(ends, start + BLOCK_TOKENS, "right"))
            after = max(after, sentence + 1)
            end = int(ends[after - 1])
            yield waiting[start:end]
            sentence, start = after, end
        waiting, waiting_lengths = waiting[start:], waiting_lengths[sentence:]
    if waiting.size:
        yield waiting


def write_blocks(
    folder: Path, splits: dict[str, Iterable[np.ndarray]], on_block: Callable[[np.ndarray], None]
) -> tuple[dict[str, int], str]:
    """Write the dataset.

    Args:
        folder: made here.
        splits: the blocks of each split, at least one each: TFDS cannot read an empty split.
        on_block: called with each block, for progress.

    Returns:
        The number of blocks in each split, and a digest (sha256, hexadecimal) of them all.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    import tensorflow_datasets as tfds

    folder.mkdir(parents=True)
    digest = hashlib.sha256()
    numbers = dict.fromkeys(splits, 0)

    def examples(split: str) -> Iterator[dict[str, np.ndarray]]:
        for block in splits[split]:
            digest.update(len(block).to_bytes(8, "little") + block.astype("<i4").tobytes())
            numbers[split] += 1
            on_block(block)
            yield {_FEATURE: block}

    with quiet_tfds():
        info = tfds.core.DatasetInfo(
            builder=tfds.core.DatasetIdentity(
                name="blocks", version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name=__name__
            ),
            description="Sentences as word ids, each after a 0; see the elmo-jax corpus this folder is in.",
            features=tfds.features.FeaturesDict({_FEATURE: tfds.features.Tensor(shape=(None,), dtype=np.int32)}),
        )
        writer = tfds.core.SequentialWriter(info, BLOCKS_A_SHARD, file_format="array_record")
        writer.initialize_splits(list(splits))
        try:
            for split in splits:
                digest.update(split.encode())
                writer.add_examples({split: examples(split)})
                writer.close_splits([split])
        except RuntimeError as error:
            # How ArrayRecord reports a full disk.
            raise OSError(str(error).partition("\n")[0]) from error
    return numbers, digest.hexdigest()


class Blocks:
    """Random access to the blocks of one split: `len(blocks)`, `blocks[i]`.

    A source for Grain's `MapDataset.source`; safe with threads, and can be sent to another process.
    """

    def __init__(self, folder: Path, split: str) -> None:
        """Open a split; one without any text is empty.

        Raises:
            UserError: the dataset's files are damaged or missing.
        """
        import tensorflow_datasets as tfds

        self._folder, self._split = folder, split
        self._records: Any = ()
        try:
            with quiet_tfds():
                builder = tfds.builder_from_directory(str(folder))
                if split in builder.info.splits:
                    self._records = builder.as_data_source(split)
        except Exception as error:
            raise self._damaged(error) from error

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        """Return block `index`: int32 `[tokens]`, sentences each after a `0`.

        Raises:
            IndexError: `index` is not in `[0, len)`.
            UserError: the file is damaged.
        """
        if not 0 <= index.__index__() < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        try:
            block = self._records[index][_FEATURE]
            # A file cut at a round size still opens, and its records read as empty.
            if not block.size or block[0] != BEGIN_SENTENCE_ID:
                raise ValueError("not a block")
            return block
        except Exception as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UserError:
        # TFDS and ArrayRecord have no exceptions of their own to tell damage by.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return UserError(
            f"{self._folder}: the blocks of {self._split!r} cannot be read; delete the corpus and prepare "
            f"it again ({reason})"
        )

    def __reduce__(self) -> tuple[type["Blocks"], tuple[Path, str]]:
        return Blocks, (self._folder, self._split)

    def __repr__(self) -> str:
        return f"Blocks({str(self._folder)!r}, {self._split!r})"
