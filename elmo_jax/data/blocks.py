"""Writes and reads blocks, the encoded text on disk: a TFDS dataset of ArrayRecord files.

A record is an int32 array of whole sentences, each `0` (`<S>`) and the ids of its words: `[0, w, ..., 0, w, ...]`.
Records hold about `BLOCK_TOKENS` tokens, since reading one record per sentence is 70 times slower. Any TFDS reader can
open the folder (`tfds.builder_from_directory(FOLDER).as_data_source()`) without TensorFlow.
"""

import contextlib
import hashlib
import logging
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from etils import epath

from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID
from elmo_jax.errors import UserError, reason_of
from elmo_jax.files import in_bucket
from elmo_jax.interrupts import temporary

BLOCK_TOKENS = 1600
SHARD_TOKENS = 16384 * BLOCK_TOKENS  # about 50 MB; fixed, so that the files depend on the text alone
SPLITS = ("train", "heldout")

_DATASET, _FEATURE = "blocks", "tokens"


@contextlib.contextmanager
def quiet_tfds() -> Iterator[None]:
    """Keeps the warnings of TFDS off the user's terminal; they concern TFDS's own folders, and retries of downloads."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("absl", "urllib3"))}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def cut_blocks(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[np.ndarray]:
    """Yields the text in blocks of whole sentences, int32 `[tokens]`, of at most `BLOCK_TOKENS` unless one is longer.

    The consecutive `parts` are (ids, lengths): the ids of the words, int32 `[words]`, and the number of words of each
    sentence, int32 `[sentences]`.
    """
    waiting, waiting_lengths = np.zeros(0, np.int32), np.zeros(0, np.int64)
    for ids, lengths in parts:
        marked = lengths.astype(np.int64) + 1  # with the mark that begins each sentence
        ends = np.cumsum(marked)
        is_word = np.ones(ids.size + lengths.size, bool)
        is_word[ends - marked] = False
        tokens = np.zeros(is_word.size, np.int32)
        tokens[is_word] = ids
        waiting = np.concatenate([waiting, tokens])
        waiting_lengths = np.concatenate([waiting_lengths, marked])
        ends = np.cumsum(waiting_lengths)
        sentence = start = 0
        # A block is complete only when a further sentence is known not to fit.
        while len(ends) and ends[-1] - start > BLOCK_TOKENS:
            after = int(np.searchsorted(ends, start + BLOCK_TOKENS, "right"))
            after = max(after, sentence + 1)
            end = int(ends[after - 1])
            yield waiting[start:end]
            sentence, start = after, end
        waiting, waiting_lengths = waiting[start:], waiting_lengths[sentence:]
    if waiting.size:
        yield waiting


class Shard(NamedTuple):
    """A file of blocks that was written."""

    blocks: int
    bytes: int
    sha256: str  # hexadecimal, of the numbers in the blocks


def write_shard(
    folder: epath.Path, split: str, number: int, blocks: Iterable[np.ndarray], temporary_folder: epath.Path
) -> Shard:
    """Writes shard `number`, from 0, of a split of at least one block, completely or not at all.

    The incomplete file is in a temporary folder of the same disk, or on this machine if `folder` is in a bucket.
    """
    from array_record.python.array_record_module import ArrayRecordWriter
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    features = _features()
    serializer, digest = ExampleSerializer(features.get_serialized_info()), hashlib.sha256()
    count = size = 0
    name = f"{_DATASET}-{split}.array_record-{number:05}"
    partial = Path(tempfile.gettempdir() if in_bucket(folder) else temporary_folder) / f"{name}.{secrets.token_hex(4)}"
    with temporary(str(partial)):
        try:
            writer = ArrayRecordWriter(str(partial), "group_size:1")
            for count, block in enumerate(blocks, 1):  # noqa: B007
                digest.update(len(block).to_bytes(8, "little") + block.astype("<i4").tobytes())
                record = serializer.serialize_example(features.encode_example({_FEATURE: block}))
                writer.write(record)
                size += len(record)
            writer.close()
        except RuntimeError as error:  # ArrayRecord reports a full disk in this way
            raise OSError(str(error).partition("\n")[0]) from error
        if in_bucket(folder):
            (folder / name).write_bytes(partial.read_bytes())
        else:
            partial.replace(folder / name)
    return Shard(count, size, digest.hexdigest())


def write_description(folder: epath.Path, splits: dict[str, list[Shard]]) -> None:
    """Writes the files that make a folder of shards a TFDS dataset; a split without shards is left out."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        data_dir=folder,
        dataset_name=_DATASET,
        filetype_suffix="array_record",
        template="{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}",
    )
    described = []
    for split, shards in splits.items():
        if shards:
            lengths, size = [shard.blocks for shard in shards], sum(shard.bytes for shard in shards)
            described.append(tfds.core.SplitInfo(split, lengths, size, template.replace(split=split)))
    with quiet_tfds():
        info = tfds.core.DatasetInfo(
            builder=tfds.core.DatasetIdentity(
                name=_DATASET, version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name=__name__
            ),
            description="Sentences as word ids, each after a 0; see the elmo-jax corpus this folder is in.",
            features=_features(),
        )
        info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
        info.set_splits(tfds.core.splits.SplitDict(described))
        info.write_to_directory(folder)


def _features() -> Any:
    import tensorflow_datasets as tfds

    return tfds.features.FeaturesDict({_FEATURE: tfds.features.Tensor(shape=(None,), dtype=np.int32)})


class Blocks:
    """The blocks of one split, a thread-safe source for Grain that can be pickled; one without text has length 0."""

    def __init__(self, folder: epath.Path, split: str) -> None:
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
        if not 0 <= index.__index__() < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        try:
            block = self._records[index][_FEATURE]
            # A truncated file can still be opened if its size is round, and then its records are empty.
            if not block.size or block[0] != BEGIN_SENTENCE_ID:
                raise ValueError("not a block")
            return block
        except Exception as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UserError:
        # TFDS and ArrayRecord raise no specific exceptions for damage.
        what = f"{self._folder}: the blocks of {self._split!r} cannot be read"
        return UserError(f"{what}; delete the corpus and prepare it again ({reason_of(error)})")

    def __reduce__(self) -> tuple[type["Blocks"], tuple[epath.Path, str]]:
        return Blocks, (self._folder, self._split)
