"""Defines the words of a tokenized text: spaces and tabs separate them, and nothing else does.

A word may hold any other character that Unicode counts as white space, such as the no-break space of "8 ½". In running
text, which has no words yet, the tokenizer decides (`elmo_jax.data.prepare.text`, `elmo_jax.tasks.squad.reader`).
"""


def split_words(text: str) -> list[str]:
    """Returns the words of a line, which does not have its line break."""
    return list(filter(None, text.replace("\t", " ").split(" ")))


def is_blank(text: str) -> bool:
    """Returns whether a line has no word."""
    return not text.strip(" \t")
