"""The source `tfds:NAME`: the text of a TFDS dataset, in which each example is a document.

The dataset's own builder is used. TFDS prepares and reads ArrayRecord files without TensorFlow, unless a builder calls
TensorFlow itself (that of lm1b does to prepare the dataset, but not to read it).
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from elmo_jax.data.blocks import quiet_tfds
from elmo_jax.data.prepare.text import Format, Piece
from elmo_jax.errors import UserError, reason_of

Features = TypeVar("Features")

_EXAMPLES_AT_ONCE = 1024
# Both the version of a dataset and the split follow a colon: tfds:wiki40b/en:1.3.0:train[:10%].
_NAME = re.compile(r"(?i:tfds):(?P<dataset>[^:]+(?::\d+\.\d+\.\d+)?)(?::(?P<split>.+))?")


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """One split of a TFDS dataset; implements `Source` of the module `sources`."""

    name: str
    format: Format
    dataset: str  # name, config and version
    split: str
    feature: str  # the name of the text feature
    examples: Any  # the split's examples with random access, as dicts of features
    # The parts of the split: a name, the first example, and the one after the last.
    ranges: tuple[tuple[str, int, int], ...]
    reason: str = ""
    has_documents = True  # each example is one

    def identity(self, digests: Iterator[tuple[str, int]]) -> dict[str, Any]:
        """Returns what identifies the text: the dataset with its version, which TFDS never changes, and the split."""
        return {"dataset": self.dataset, "split": self.split, "examples": len(self.examples)}

    def parts(self) -> Iterator["TfdsText"]:
        yield self

    def pieces(self) -> Iterator[Piece]:
        for start in range(0, len(self.examples), _EXAMPLES_AT_ONCE):
            numbers = range(start, min(start + _EXAMPLES_AT_ONCE, len(self.examples)))
            for number, example in zip(numbers, self.examples.__getitems__(list(numbers)), strict=True):
                text = example[self.feature]
                data = text.encode() if isinstance(text, str) else bytes(text)
                yield Piece(data, f"{self.name}, example {number}", 1, starts_document=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_tfds, (self.name, self.format)  # the examples are opened again


def check_distinct(sources: Iterable[TfdsText]) -> None:
    """Raises `UserError` if two splits share examples, or if a split has some twice, as `train+train[:10%]` has."""
    ranges = [(source, part) for source in sources for part in source.ranges]
    for (one, (split, start, end)), (two, (other, first, last)) in itertools.combinations(ranges, 2):
        if one.dataset == two.dataset and split == other and start < last and first < end:
            what = "names some examples twice" if one is two else f"shares examples with {one.name}"
            raise UserError(f"{two.name}: {what}; name splits that do not overlap")


def open_tfds(name: str, format: Format | None) -> TfdsText:
    """Opens `tfds:NAME[:SPLIT]`, whose split may be a slice (`train[:10%]`); prepares the dataset first if necessary.

    Without a format, lm1b is read as `lines` and any other dataset as `raw`.
    """
    dataset, split = split_name(name)
    with quiet_tfds():
        builder, feature = prepared_builder(name, dataset, split, _text_feature)
        examples = read_split(name, builder, split)
        ranges = _ranges(name, builder, split)
    if not len(examples):
        raise UserError(f"{name}: the split {split!r} has no examples")
    layout = format or (Format.LINES if builder.name == "lm1b" else Format.RAW)
    return TfdsText(name, layout, builder.info.full_name, split, feature, examples, ranges)


def split_name(name: str) -> tuple[str, str]:
    """Divides `tfds:NAME[:SPLIT]`, or raises `UserError`, into the name of the dataset and the split (`train`)."""
    match = _NAME.fullmatch(name)
    if not match:
        raise UserError(f"{name}: expected tfds:NAME or tfds:NAME:SPLIT")
    return match["dataset"], match["split"] or "train"


def read_split(name: str, builder: Any, split: str) -> Any:
    """Returns the examples of a prepared split with random access; `name` is for the messages."""
    try:
        return builder.as_data_source(split)
    except NotImplementedError:
        raise UserError(
            f"{name}: prepared as {builder.info.file_format.value} in {builder.data_path}, which only TensorFlow can"
            " read; set TFDS_DATA_DIR to another folder to have it prepared as array_record"
        ) from None
    except (ValueError, KeyError):
        _ranges(name, builder, split)
        raise


def _ranges(name: str, builder: Any, split: str) -> tuple[tuple[str, int, int], ...]:
    import tensorflow_datasets as tfds

    splits = builder.info.splits
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(splits)
    except (ValueError, KeyError, AssertionError):
        raise UserError(f"{name}: no split {split!r}; the dataset has {', '.join(splits)}") from None
    ends = [splits[part.splitname].num_examples if part.to is None else part.to for part in parts]
    return tuple((part.splitname, part.from_ or 0, end) for part, end in zip(parts, ends, strict=True))


def prepared_builder(
    name: str, dataset: str, split: str, choose: Callable[[str, Any], Features]
) -> tuple[Any, Features]:
    """Returns the builder of TFDS's `dataset`, whose files it prepares if necessary, and what `choose` returns.

    `choose` is called with `name`, which is that of the user and for the messages, and the dataset's features before
    anything is downloaded, and may refuse them.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import downloader

    try:
        builder = tfds.builder(dataset)
        chosen = choose(name, builder.info.features)
        if not builder.is_prepared():
            builder = tfds.builder(dataset, file_format="array_record")
            if builder.info.splits:  # TFDS knows those of many datasets before they are prepared
                _ranges(name, builder, split)
            downloader.MAX_RETRIES = 4  # a few seconds; TFDS would try for minutes where there is no network
            builder.download_and_prepare()
    except UserError:
        raise
    except tfds.core.DatasetNotFoundError:
        raise UserError(f"{name}: TFDS has no dataset of this name; see its catalog") from None
    except ImportError as error:
        package = (error.name or "tensorflow").partition(".")[0]
        raise UserError(
            f"{name}: the dataset's own builder needs {package} to prepare it (not to read it later); "
            f"run: pip install {package}"
        ) from None
    except Exception as error:
        # TFDS and its downloads may raise any exception, and all of them concern this dataset.
        advice = "without a network, set TFDS_DATA_DIR to a folder in which it is prepared"
        raise UserError(f"{name}: TFDS cannot prepare the dataset: {reason_of(error)}; {advice}") from error
    return builder, chosen


def _text_feature(name: str, features: Any) -> str:
    import tensorflow_datasets as tfds

    texts = [key for key, feature in features.items() if isinstance(feature, tfds.features.Text)]
    if "text" in texts:
        return "text"
    if len(texts) == 1:
        return texts[0]
    names = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in sorted(features.items()))
    raise UserError(f"{name}: expected one text feature, or one called text; the dataset has {names}")
