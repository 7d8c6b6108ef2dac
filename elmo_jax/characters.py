"""Encodes words as character ids, the input of the char CNN; all character ids are defined here.

Shapes: `n` words, `W` characters per word (`max_characters`, 50 in bilm-tf).

Ids 0-255 are the UTF-8 bytes of a word; five special ids follow. These 261 raw ids are used in training. Inference on
padded batches adds 1 to every id, so that 0 can mark a padded token; hence published options say 262 characters.
"""

from collections.abc import Sequence

import numpy as np

BEGIN_SENTENCE = 256
END_SENTENCE = 257
BEGIN_WORD = 258
END_WORD = 259
PADDING = 260  # fills a word's row of ids
CHARACTERS = 261  # the number of raw ids

MAX_CHARACTERS = 50  # original: max_characters_per_token

BEGIN_SENTENCE_WORD = "<S>"
END_SENTENCE_WORD = "</S>"
UNKNOWN_WORD = "<UNK>"
SPECIAL_WORDS = (BEGIN_SENTENCE_WORD, END_SENTENCE_WORD, UNKNOWN_WORD)

# The two boundary tokens have their own characters; `<UNK>` is spelled by its bytes, as in bilm-tf.
_MARK_CHARACTERS = {BEGIN_SENTENCE_WORD: BEGIN_SENTENCE, END_SENTENCE_WORD: END_SENTENCE}
_WORDS_AT_ONCE = 1 << 16  # bounds the index arrays, which need 24 bytes per character


def encode_chars(words: Sequence[str], max_characters: int = MAX_CHARACTERS) -> np.ndarray:
    """Spells words as raw character ids.

    The row of a word is `[258] + its first max_characters - 2 bytes + [259]`, filled up with 260. The cut may fall
    inside a character of several bytes, as in bilm-tf. `<S>` and `</S>` are `[258, 256, 259]` and
    `[258, 257, 259]`, filled up in the same way.

    Args:
      words: `n` words.
      max_characters: `W`, the length of a row; a `ValueError` is raised below 3.

    Returns:
      int16 `[n, W]` with values from 0 to 260.
    """
    if max_characters < 3:
        raise ValueError(f"max_characters is {max_characters}, but a row needs at least 3")
    rows = np.full((len(words), max_characters), PADDING, np.int16)  # [n, W]
    for start in range(0, len(words), _WORDS_AT_ONCE):
        part = words[start : start + _WORDS_AT_ONCE]
        filled = rows[start : start + len(part)]
        encoded = [word[: max_characters - 2].encode()[: max_characters - 2] for word in part]  # a character has a byte
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))  # [n]
        ends = np.cumsum(lengths)
        of_word = np.repeat(np.arange(len(encoded)), lengths)  # [bytes]
        position = np.arange(len(of_word)) - np.repeat(ends - lengths, lengths)  # [bytes]
        filled[of_word, position + 1] = np.frombuffer(b"".join(encoded), np.uint8)
        filled[:, 0] = BEGIN_WORD
        filled[np.arange(len(encoded)), lengths + 1] = END_WORD
        for i, word in enumerate(part):
            if word in _MARK_CHARACTERS:
                filled[i] = PADDING
                filled[i, :3] = BEGIN_WORD, _MARK_CHARACTERS[word], END_WORD
    return rows
