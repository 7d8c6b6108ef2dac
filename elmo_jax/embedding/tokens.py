"""Splits running text into sentences of words, as the text was split that a biLM was trained on."""

from elmo_jax.checkpoints.export import PretrainedBiLM
from elmo_jax.data.prepare.options import TextOptions, check_separates_words
from elmo_jax.data.prepare.text import UNSPACED, is_unspaced, raw_sentences
from elmo_jax.errors import UserError


def tokenize(
    text: str, bilm: PretrainedBiLM | None = None, language: str | None = None, name: str = "text"
) -> list[list[str]]:
    """Splits running text as `elmo-jax prepare` does: into sentences by sentencex, into words by Moses's tokenizer.

    Args:
      text: the text; blank lines end a paragraph.
      bilm: the biLM that reads the words, which records the language of its text.
      language: the ISO 639-1 code of the language; by default that of the biLM, or English without one.
      name: the name of the text in messages.

    Returns:
      The words of each sentence, as `EmbeddingBiLM.embed` takes them.

    Raises:
      UserError: the text is not a string, its language does not separate words by spaces, or there is no such language.
    """
    if not isinstance(text, str):
        raise UserError(f"{name}: expected a string, got {type(text).__name__}")
    chosen = TextOptions(language=language).in_language("en" if bilm is None else bilm.language).language
    check_separates_words(chosen, name)
    if is_unspaced(text, are_words=False):
        raise UserError(f"{name}: {UNSPACED}")
    return list(raw_sentences(text.split("\n"), language=chosen or "en"))
