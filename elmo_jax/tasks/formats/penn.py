"""Undoes the escapes of the Penn Treebank, which stand for characters that its own notation needs."""

import re

_WORDS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}
_BACKSLASH = re.compile(r"\\([/*])")


def unescape(word: str) -> str:
    r"""Returns the text that a leaf of a tree stands for.

    Bracket names (`-LRB-`, in small letters too), quotes and the backslash before `/` and `*` are mapped. Quotes become
    `"`, which is how the text that biLMs are trained on (1 Billion Word) has them.
    """
    return _WORDS.get(word.upper()) or without_backslashes(word)


def without_backslashes(word: str) -> str:
    r"""Returns a word with `/` and `*` in place of `\/` and `\*`."""
    return _BACKSLASH.sub(r"\1", word)
