"""Measures the perplexity of a biLM on any text."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo_jax.characters import PADDING, SPECIAL_WORDS
from elmo_jax.checkpoints.bilm_tf import checkpoint_of
from elmo_jax.checkpoints.open import BiLMSource, open_bilm
from elmo_jax.config import DIRECTIONS, EvaluationConfig
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.lexicon import BEGIN_SENTENCE_ID, LONG_WORD, UNKNOWN_ID, read_vocabulary, vocabulary_file
from elmo_jax.data.prepare.options import PrepareOptions, TextOptions
from elmo_jax.data.prepare.pipeline import prepare
from elmo_jax.data.windows import BlockSource, DistinctWords
from elmo_jax.distributed.mesh import REPLICATED, make_mesh, to_devices
from elmo_jax.errors import UserError
from elmo_jax.files import temporary_folder
from elmo_jax.model.bilm import BiLM, LSTMForm
from elmo_jax.model.precision import Precision
from elmo_jax.runs.progress import Progress, say
from elmo_jax.settings import choice
from elmo_jax.training.evaluate import Evaluator, Perplexity, SentenceScores, with_merged
from elmo_jax.training.partitioning import preferred_encoder_chunk, put_params
from elmo_jax.training.softmax_sharding import choose_placement

MOST_ROWS = 1 << 20  # a few words per row even in a text of millions of words


@dataclasses.dataclass(frozen=True)
class TextEvaluation:
    """The result of `evaluate_text`."""

    perplexity: Perplexity  # the perplexities
    sentences: int  # the number of sentences
    vocabulary_size: int  # the number of words of the softmax
    merged: int  # the number of these words that were counted as `<UNK>`, besides itself
    step: int | None  # the step of the run that the biLM was made at; None if it is unknown
    # a header and one line per sentence with its number, its targets, its log-probabilities in nats and its words,
    # separated by tabs; empty unless it was requested
    sentence_table: str

    def as_dict(self) -> dict[str, Any]:
        sources = {
            name: {"perplexity": source.as_dict(), "tokens": source.tokens, "unknown_targets": source.unknown}
            for name, source in self.perplexity.sources.items()
        }
        return ({"sources": sources} if sources else {}) | {
            "perplexity": self.perplexity.as_dict(),
            "tokens": self.perplexity.tokens,
            "sentences": self.sentences,
            "unknown_targets": self.perplexity.unknown,
            "vocabulary_size": self.vocabulary_size,
            "merged_words": self.merged,
            "step": self.step,
        }

    def describe(self) -> str:
        p = self.perplexity
        step = "" if self.step is None else f"step {self.step:,}\n"
        sources = "".join(
            f"  {name}: {source.shown(2)} ({source.tokens:,} tokens, {source.unknown:.2%} of them <UNK>)\n"
            for name, source in p.sources.items()
        )
        merged = f", of which {self.merged:,} count as <UNK>" if self.merged else ""
        return step + (
            f"perplexity: {p.shown(2)}\n{sources}"
            f"{p.tokens:,} tokens in {self.sentences:,} sentences (each counts its end mark once), {p.unknown:.2%} of"
            f" them <UNK>;\nfull softmax over {self.vocabulary_size:,} words{merged}. Comparable only with"
            " perplexities over the same vocabulary and text."
        )


def evaluate_text(
    model: BiLMSource,
    sources: Sequence[str],
    options: TextOptions | None = None,
    *,
    batch_size: int | None = None,
    words: Path | None = None,
    per_sentence: bool = False,
    precision: str | None = None,
) -> TextEvaluation:
    """Measures the perplexity of a biLM on a text with the full softmax.

    The text is divided into `batch_size` rows, each of which starts from a zero LSTM state.

    Args:
      model: the source of the biLM, see `open_bilm`.
      sources: the sources of the text, see `prepare`, or one prepared corpus, whose held-out part is read.
      options: the options for reading the text.
      batch_size: the number of rows; None for the number with which the model's own held-out perplexity was measured.
      words: a vocabulary file; the words of the biLM that it does not have count as `<UNK>`, whose probability is then
        the sum of theirs. So biLMs with different vocabularies are compared over the words that both have. For a
        checkpoint of bilm-tf, it is the file with the words of its softmax instead.
      per_sentence: whether the table of all sentences is wanted too.
      precision: that of the matrix products, a `Precision`; None for that of the training, or float32 if it is unknown.

    Raises:
      UserError: the model or the text does not exist, the model has no softmax, the corpus was prepared with another
        vocabulary, the file of words has no word of the biLM, or the number of rows is out of range.
    """
    if batch_size is not None and not 1 <= batch_size <= MOST_ROWS:
        raise UserError(f"--batch-size: expected 1 to {MOST_ROWS:,}, got {batch_size:,}")
    if words is not None and checkpoint_of(model):
        model, words = (*model[:2], words) if isinstance(model, tuple) else (None, model, words), None
    bilm = open_bilm(model)
    if bilm.vocabulary is None:
        name = model[1] if isinstance(model, tuple) else model
        reason = "the published files have none, and that of a checkpoint of bilm-tf needs --vocab"
        raise UserError(f"{name}: this biLM has no softmax ({reason}), so it has no perplexity")
    merged = None if words is None else _merged(words, bilm.vocabulary)
    mesh = make_mesh()
    program = BiLM(
        bilm.config,
        precision=choice(Precision, precision or bilm.precision_of_training, "precision"),
        form=LSTMForm.of(mesh.devices.flat[0].platform),
        encoder_chunk=preferred_encoder_chunk(mesh),
    )
    rows = batch_size or bilm.info.get("evaluation_batch_size", EvaluationConfig.batch_size)
    vocabulary_size = len(bilm.vocabulary)
    placement = choose_placement("auto", mesh.size, vocabulary_size, bilm.config.lstm.projection)
    evaluator = Evaluator(program, EvaluationConfig(batch_size=rows), mesh, vocabulary_size, placement, merged)
    params = put_params(bilm.params if merged is None else with_merged(bilm.params, merged), placement, mesh)
    with temporary_folder() as folder:
        corpus = _corpus(sources, bilm.vocabulary, folder, options, bilm.language)
        char_ids = corpus.char_ids(bilm.config.char_cnn.max_characters)
        on_devices = to_devices(char_ids, REPLICATED, mesh)
        blocks, named = corpus.blocks("heldout"), corpus.source_of_blocks("heldout")
        distinct, tokens = DistinctWords(char_ids, PADDING), corpus.report["splits"]["heldout"]["tokens"]
        with Progress("evaluating", "tokens", tokens) as progress:
            perplexity, scores = evaluator.sentences(
                params, blocks, distinct, on_devices, lambda window: progress.add(int(window.mask.sum())), named
            )
        table = _sentence_table(blocks, corpus.words(), scores) if per_sentence else ""
    if Corpus.find(sources) is None:  # the report of another corpus counts its training text too
        _say_long_words(sources, corpus, bilm.config.char_cnn.max_characters - 2)
    others = 0 if merged is None else int(merged.sum()) - 1  # besides <UNK>
    return TextEvaluation(perplexity, len(scores.tokens), vocabulary_size, others, bilm.info.get("steps"), table)


def _merged(path: Path, vocabulary: list[str]) -> np.ndarray:
    kept = set(read_vocabulary(path))
    merged = np.array([word not in kept for word in vocabulary])
    merged[UNKNOWN_ID] = True
    if merged[len(SPECIAL_WORDS) :].all():
        raise UserError(f"{path}: has no word of the biLM's vocabulary, so all words would count as <UNK>")
    return merged


def _corpus(
    sources: Sequence[str], vocabulary: list[str], temporary: Path, options: TextOptions | None, language: str = "en"
) -> Corpus:
    corpus, options = Corpus.find(sources), options or TextOptions()
    if corpus is not None:
        options.check_unused(sources[0])
        if corpus.vocabulary() != vocabulary:
            problem = "prepared with another vocabulary than the model's, so that a perplexity would be meaningless"
            raise UserError(f"{sources[0]}: {problem}; give the text itself, or prepare it with --vocab EXPORT")
        return corpus
    with vocabulary_file(vocabulary) as words:
        chosen = PrepareOptions(options.in_language(language), vocabulary_file=words, heldout_fraction=1.0)
        return prepare(sources, temporary / "corpus", chosen)


def _say_long_words(sources: Sequence[str], corpus: Corpus, read: int) -> None:
    """Says how many words are longer than the `read` bytes of the biLM, if that is the length that was counted."""
    if (long := corpus.report["lexicon"]["long_word_uses"]) and read == LONG_WORD:
        say(f"{', '.join(sources)}: {long:,} words are longer than {read} bytes, of which the biLM reads no more")


def _sentence_table(blocks: BlockSource, words: list[str], scores: SentenceScores) -> str:
    text = np.concatenate([blocks[i] for i in range(len(blocks))])
    starts = np.flatnonzero(text == BEGIN_SENTENCE_ID)
    lines = ["\t".join(["sentence", "tokens", *DIRECTIONS[: len(scores.log_probability)], "text"]) + "\n"]
    for number, ids in enumerate(np.split(text, starts[1:])):
        scored = "\t".join(f"{value:.4f}" for value in scores.log_probability[:, number])
        sentence = " ".join(words[i] for i in ids[1:])
        lines.append(f"{number}\t{scores.tokens[number]}\t{scored}\t{sentence}\n")
    return "".join(lines)
