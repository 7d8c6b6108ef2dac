"""Recognizes how text is laid out: words that are not separated by spaces, and lines that are whole paragraphs."""

import re
from collections.abc import Sequence

UNSPACED = (
    "most of this text is in a script without spaces between words; split it into words with a program for its language"
)
# Runs of Thai, Lao, Burmese and Khmer letters, kana, and Chinese characters.
_RUNS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")
_LONG_LINE = 200  # characters; the lines of text that was wrapped to a width are shorter
_SENTENCE_END = re.compile(rb"[.!?][\"')]?\s*$")
_FEWEST_LINES = 20  # that say where lines end
_LONGEST_WORDS = 6  # the mean number of letters between spaces above which they are clauses rather than words


def is_unspaced(text: str, are_words: bool) -> bool:
    """Returns whether most letters of a text are of scripts without spaces between words, and it is not split.

    Args:
      text: the text.
      are_words: whether the text should be words separated by spaces. If so, it counts as not split only if there are
        as many such letters between two spaces as clauses have; otherwise it always does.
    """
    letters = sum(map(len, _RUNS.findall(text)))
    if not letters or 2 * letters < sum(map(str.isalpha, text)):
        return False
    words = sum(_RUNS.search(word) is not None for word in text.split())
    return not are_words or letters > _LONGEST_WORDS * words


def is_unwrapped(lines: Sequence[str] | Sequence[bytes]) -> bool:
    """Returns whether each of some consecutive lines is a paragraph.

    That is so if a tenth of the text is in lines that are longer than the usual widths to which text is wrapped.
    """
    long = sum(len(line) for line in lines if len(line) > _LONG_LINE)
    return 10 * long > sum(map(len, lines))


def end_sentences(lines: Sequence[bytes]) -> bool:
    """Returns whether three quarters of some lines, each followed by another, end where sentences do.

    Lines of wrapped text rarely do. Fewer than 20 lines are too few to tell.
    """
    ends = sum(_SENTENCE_END.search(line) is not None for line in lines)
    return len(lines) >= _FEWEST_LINES and 4 * ends >= 3 * len(lines)
