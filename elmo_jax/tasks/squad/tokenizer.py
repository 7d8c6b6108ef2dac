"""Splits running text into words and records their positions in it."""

import dataclasses
import itertools
import re
from collections.abc import Iterator

_CHUNK = re.compile(r"\S+")
# These are words: the punctuation that the Penn Treebank splits off, and, since answers begin and end there, dashes,
# slashes, single quotes and currency signs (original: document-qa). A comma or a colon before a digit and consecutive
# underscores stay in their word.
_SEPARATOR = re.compile(
    r"""\.\.\. | `` | ''
    | [,:](?![0-9])
    | [;@\#%&?!()\[\]{}<>…]
    | [-–—−/~"'’‘”“°]
    | [$¢£¤¥\u20a0-\u20cf﹩＄￠￡￥￦]
    | (?<=[^_])_(?=[^_])""",
    re.VERBOSE,
)
_NEGATION = re.compile(r"(?<=\w)(?=n['’]t(?!\w))", re.IGNORECASE)  # "didn't" is "did" and "n't" in the Penn Treebank
_FULL_STOP = re.compile(r"""(?<=[^.])\.(?=[])}>"'’”]*\Z)""")  # only at the end of a sentence
_DOUBLE_QUOTES = frozenset(["``", "''", "“", "”"])


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The words of a text."""

    words: list[str]  # the words, in which double quotes of every kind are `"`
    starts: list[int]  # the position of each word's first character in the text, counted in code points
    ends: list[int]  # the position after each word's last character

    def overlapping(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the first and the last word with a character from `start` to before `end`; None if there is none."""
        found = [i for i, (a, b) in enumerate(zip(self.starts, self.ends, strict=True)) if a < end and b > start]
        return (found[0], found[-1]) if found else None


def tokenize(text: str) -> Tokens:
    """Splits English text of any number of sentences into words.

    Sentences are found first, since a full stop is split off only at their ends: "Mr." and "U.S." stay whole elsewhere.
    """
    starts: list[int] = []
    ends: list[int] = []
    for chunk_start, chunk, ends_sentence in _chunks(text):
        cuts = {0, len(chunk)}
        for match in _SEPARATOR.finditer(chunk):
            cuts |= {match.start(), match.end()}
        cuts |= {match.start() for match in _NEGATION.finditer(chunk)}
        full_stop = _FULL_STOP.search(chunk) if ends_sentence else None
        if full_stop:
            cuts |= {full_stop.start(), full_stop.end()}
        for start, end in itertools.pairwise(sorted(cuts)):
            starts.append(chunk_start + start)
            ends.append(chunk_start + end)
    words = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    return Tokens(['"' if word in _DOUBLE_QUOTES else word for word in words], starts, ends)


def _chunks(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields the pieces between spaces: their positions, their texts, and whether they end a sentence."""
    from sentencex import segment

    start = 0
    for sentence in segment("en", text):  # concatenated, the sentences are the text
        chunks = list(_CHUNK.finditer(sentence))
        for i, chunk in enumerate(chunks):
            yield start + chunk.start(), chunk.group(), i == len(chunks) - 1
        start += len(sentence)
