"""Computes the vectors of sentences (`EmbeddingBiLM.embed`), and checks what is given.

Shapes: B sentences, T words of the longest sentence, W characters per word, L LSTM layers, P projection, R rows of the
carry.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from elmo_jax.characters import MAX_CHARACTERS, encode_chars
from elmo_jax.config import ModelConfig
from elmo_jax.embedding.engine import Engine, PendingOutput
from elmo_jax.embedding.word_table import check_word
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import initial_carry
from elmo_jax.settings import choice
from elmo_jax.types import Tree

T = TypeVar("T")


class BosEos(enum.Enum):
    """What happens to the vectors of the boundary tokens, which the LSTMs read too."""

    DROP = "drop"
    KEEP = "keep"  # those of <S> and </S> are the first and the last of every sentence


class CarryState(enum.Enum):
    """The state of the LSTMs at the beginning of a batch."""

    RESET = "reset"  # zeros
    CARRY = "carry"  # the state at the end of the same row in the previous call, as in bilm-tf and AllenNLP
    WARM_UP = "warm_up"  # the state at the end of the same batch, run from zeros


def embed(
    engine: Engine,
    sentences: Sequence[Sequence[str]],
    carry: Tree | None,
    state: str | CarryState,
    bos_eos: str | BosEos,
) -> tuple[np.ndarray, np.ndarray, Tree]:
    """Computes the vectors of sentences as `EmbeddingBiLM.embed` describes."""
    config = engine.config
    state, keep_bos_eos = choice(CarryState, state, "state"), choice(BosEos, bos_eos, "bos_eos") is BosEos.KEEP
    check_sentences(sentences)
    if carry is not None and state is not CarryState.CARRY:
        raise UserError(f"carry: used with state='carry' only; state={state.value!r} starts from zeros")
    after = {} if state is CarryState.RESET else _initial_states(config, carry, len(sentences))
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    kept = lengths + 2 * keep_bos_eos
    longest = int(kept.max(initial=0))
    layers = np.zeros((len(sentences), config.lstm.layers + 1, longest, config.width), np.float32)
    groups = engine.groups(lengths, carried=state is not CarryState.RESET)

    def started(group: np.ndarray) -> tuple[np.ndarray, PendingOutput]:
        before = jax.tree.map(lambda leaf: leaf[:, group], after) or None
        return group, _start(engine, [sentences[i] for i in group], state, before, bos_eos=keep_bos_eos)

    for group, running in _one_behind(map(started, groups)):
        vectors = np.split(running.vectors()[0], np.cumsum(kept[group])[:-1])
        for sentence, words in zip(group.tolist(), vectors, strict=True):
            split_layers(words, layers[sentence, :, : len(words)].swapaxes(0, 1), config)
        for leaf, new in zip(jax.tree.leaves(after), jax.tree.leaves(running.carry()), strict=True):
            leaf[:, group] = new
    return layers, np.arange(longest) < kept[:, None], after


def _start(
    engine: Engine, sentences: Sequence[Sequence[str]], state: CarryState, carry: Tree | None, **options: Any
) -> PendingOutput:
    # The carry is that of `CarryState.CARRY`, zeros for `CarryState.WARM_UP`, or None for `CarryState.RESET`.
    if state is CarryState.WARM_UP:
        carry = engine.start(sentences, carry=carry, **options).carry()  # by the same program
    return engine.start(sentences, carry=carry, **options)


def _one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yields each item after the next one was made, so that what an item has started goes on in the meantime."""
    before: list[T] = []
    for item in items:
        yield from before
        before = [item]
    yield from before


def split_layers(vectors: np.ndarray, layers: np.ndarray, config: ModelConfig) -> None:
    """Copies outputs [words, P + L * 2P] to layers [words, L+1, 2P], the first of which is the token vector twice."""
    words, projection = len(vectors), config.lstm.projection
    tokens = layers[:, 0].reshape(words, len(config.directions), projection)  # a view
    tokens[:] = vectors[:, None, :projection]
    layers[:, 1:] = vectors[:, projection:].reshape(words, config.lstm.layers, config.width)


def embed_texts(
    engine: Engine,
    texts: Iterable[tuple[Any, Sequence[Sequence[str]]]],
    dtype: str,
    weights: np.ndarray | None = None,
    state: CarryState = CarryState.RESET,
) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Computes the vectors of texts, each a name and its sentences, from the state `RESET` or `WARM_UP`.

    Yields:
      The name of a text, the output of all its words [N, …] (`Engine.start`), and whether a word's are finite, [N].
    """

    def started() -> Iterator[Any]:
        carried = state is not CarryState.RESET
        for batch in in_batches(texts, lambda text: sum(len(words) + 2 for words in text[1]), engine.most_words):
            sentences = [sentence for _, text in batch for sentence in text]
            lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
            runs = []
            for group in engine.groups(lengths, carried):
                zeros = initial_carry(engine.config, len(group), np.zeros) if carried else None
                chosen = [sentences[i] for i in group]
                runs.append((group, _start(engine, chosen, state, zeros, dtype=dtype, weights=weights)))
            yield batch, lengths, runs

    for batch, lengths, runs in _one_behind(started()):
        results = [running.vectors() for _, running in runs]
        vectors, finite = results[0]
        if len(results) > 1:  # groups have the sentences in another order than the text
            words = np.split(np.arange(lengths.sum()), np.cumsum(lengths)[:-1])  # the numbers of those of each sentence
            order = np.argsort(np.concatenate([words[i] for group, _ in runs for i in group]))
            vectors, finite = (np.concatenate(parts)[order] for parts in zip(*results, strict=True))
        ends = np.cumsum([sum(map(len, text)) for _, text in batch])[:-1]
        parts = zip(batch, np.split(vectors, ends), np.split(finite, ends), strict=True)
        yield from ((name, *part) for (name, _), *part in parts)


def in_batches(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yields consecutive items whose sizes are at most `most` together, or one item."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and total + size(item) > most:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def check_sentences(sentences: Sequence[Sequence[str]]) -> None:
    """Raises `UserError` unless `sentences` is a list of lists of words."""
    if not _is_list(sentences):
        kind = "one string; split it into words" if isinstance(sentences, str) else type(sentences).__name__
        raise UserError(f"sentences: expected a list of lists of words, got {kind}")
    for number, sentence in enumerate(sentences):
        if not _is_list(sentence):
            kind = "a string; split it" if isinstance(sentence, str) else type(sentence).__name__
            raise UserError(f"sentences[{number}]: expected a list of words, got {kind}")
        for word in sentence:
            if not isinstance(word, str):
                raise UserError(f"sentences[{number}] holds {word!r}, which is no word (str)")


def character_ids(
    sentences: Sequence[Sequence[str]], max_characters: int = MAX_CHARACTERS, rows: int = 0, steps: int = 0
) -> np.ndarray:
    """Returns character ids + 1, the input of `ELMo`, with as many characters W per word as the biLM reads.

    Args:
      sentences: B lists of words.
      max_characters: W, that of the biLM; `ELMo` refuses any other. `EmbeddingBiLM.character_ids` gives it.
      rows: the minimal B; empty sentences are added up to it.
      steps: the minimal T; positions are added up to it.

    Returns:
      int32 [B, T, W], zeros beyond the end of a sentence.

    Raises:
      UserError: a sentence is a string, or a word is not a string or cannot be encoded.
    """
    check_sentences(sentences)
    steps = max(steps, *map(len, sentences), 0)
    ids = np.zeros((max(rows, len(sentences)), steps, max_characters), np.int32)
    for row, sentence in enumerate(sentences):
        for word in sentence:
            check_word(word, max_characters)
        ids[row, : len(sentence)] = encode_chars(sentence, max_characters) + 1
    return ids


def _is_list(value: Any) -> bool:
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    return is_array or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def _initial_states(config: ModelConfig, carry: Tree | None, rows: int) -> Tree:
    """Returns a copy of a carry with zeros for the rows that it lacks; `carry` is what the user gave."""
    zeros = initial_carry(config, 0, np.zeros)
    if carry is not None and not carry:
        raise UserError("carry: is that of a call without state='carry'; give state='carry' from the first call on")
    carry = zeros if carry is None else jax.tree.map(np.asarray, carry)

    def sizes(tree: Tree) -> list[Any]:
        return [(path, leaf.shape[:1], leaf.shape[2:]) for path, leaf in jax.tree.leaves_with_path(tree)]

    if sizes(carry) != sizes(zeros):
        raise UserError("carry: not of this biLM (other layers or sizes); pass the carry that the last call returned")
    return jax.tree.map(lambda leaf: np.pad(leaf, ((0, 0), (0, max(0, rows - leaf.shape[1])), (0, 0))), carry)
