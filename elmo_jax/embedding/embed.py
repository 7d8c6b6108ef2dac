"""Computes the vectors of sentences (`EmbeddingBiLM.embed`) for batches of any shape with a few compiled programs.

Shapes: B sentences, T words of the longest sentence, W characters per word, L LSTM layers, P projection, C cells,
R rows of the carry, S steps of a window; a leading 2 is the direction, forward then backward (1 without backward).

Both streams of a sentence (the backward one reversed by the sentence's own length) are cut into windows of a few sizes
(`Sizes`), and the LSTM state is carried from one window to the next, which is exact. Rows are sorted by descending
length: sentences that have ended are left out of the next window, except for those that fill the number of rows up to
the next size. Therefore little is computed for padding, no text needs more than 24 compiled programs of the LSTMs (8 on
accelerators, where compilation takes about a second each) and 2 of the encoder, however the batches vary, and a long
sentence needs memory for its vectors and for two windows, of which one is copied out while the next runs.

With D devices, the rows of the LSTMs are divided over them, and up to 128 * D sentences run in parallel. Rows do not
exchange anything, so nothing is communicated. The encoder runs on the first device.
"""

import enum
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from elmo_jax.characters import BEGIN_SENTENCE_WORD, END_SENTENCE_WORD, MAX_CHARACTERS, spell
from elmo_jax.distributed.mesh import AXIS
from elmo_jax.embedding.word_cache import WordVectors, key
from elmo_jax.errors import UserError
from elmo_jax.model.bilm import BiLM, initial_carry
from elmo_jax.settings import choice
from elmo_jax.types import Tree


class Sizes(NamedTuple):
    """The sizes that programs are compiled for."""

    windows: tuple[int, ...]  # the values of S, descending
    rows: tuple[int, ...]  # the numbers of rows of one device, ascending

    @classmethod
    def of(cls, mesh: Mesh) -> "Sizes":
        """Returns the sizes for the devices of a mesh."""
        return ON_CPU if mesh.devices.flat[0].platform == "cpu" else ON_ACCELERATOR


ROWS = 128  # the most sentences that one device runs side by side
ON_CPU = Sizes((32, 8, 2), (1, 2, 4, 8, 16, 32, 64, ROWS))
ON_ACCELERATOR = Sizes((32, 8), (4, 16, 64, ROWS))


class Marks(enum.Enum):
    """What happens to the vectors of the sentence marks, which the LSTMs read too."""

    DROP = "drop"
    KEEP = "keep"  # those of <S> and </S> are the first and the last of every sentence


class CarryState(enum.Enum):
    """The state of the LSTMs at the beginning of a batch."""

    RESET = "reset"  # zeros
    CARRY = "carry"  # the state at the end of the same row in the previous call, as in bilm-tf and AllenNLP
    WARM_UP = "warm_up"  # the state at the end of the same batch, run from zeros


@partial(jax.jit, static_argnames="model")
def _window(model: BiLM, params: Tree, vectors: jax.Array, carry: Tree, mask: jax.Array) -> tuple[jax.Array, Tree]:
    """Runs one window, [2, S, B, P] -> the layers [L, 2, S, B, P] and the carry."""
    found: Any = model.apply({"params": params}, vectors, carry, mask=mask, method="run_layers")
    layers, carry = found
    return jnp.stack(layers), carry


class OnDevices(NamedTuple):
    """A biLM on the devices that run it."""

    model: BiLM
    params: Tree  # of the LSTMs, on all devices of the mesh
    words: WordVectors
    mesh: Mesh


def embed(
    bilm: OnDevices,
    sentences: Sequence[Sequence[str]],
    carry: Tree | None,
    state: str | CarryState,
    marks: str | Marks,
) -> tuple[np.ndarray, np.ndarray, Tree]:
    """Computes the vectors of sentences as `EmbeddingBiLM.embed` describes."""
    model, mesh = bilm.model, bilm.mesh
    state, kept = choice(CarryState, state, "state"), 2 * (choice(Marks, marks, "marks") is Marks.KEEP)
    check_sentences(sentences)
    if state is CarryState.CARRY:
        carry = initial_carry(model.config, 0, np.zeros) if carry is None else _checked_carry(model, carry)
    elif carry is not None:
        raise UserError(f"carry: used with state='carry' only; state={state.value!r} starts from zeros")
    else:
        carry = initial_carry(model.config, 0, np.zeros)
    carry = _grown(carry, len(sentences))
    lengths = [len(sentence) + kept for sentence in sentences]
    longest = max(lengths, default=0)
    shape = (len(sentences), model.config.lstm.layers + 1, longest, model.config.width)
    layers = np.zeros(shape, np.float32)  # [B, L+1, T, 2P]
    for start in range(0, len(sentences), ROWS * mesh.size):
        rows = slice(start, start + ROWS * mesh.size)
        part = _Group(bilm, sentences[rows], 1 - kept // 2)
        if state is CarryState.WARM_UP:
            carry = part.run(carry, start, None)
        carry = part.run(carry, start, layers[rows])
    mask = np.arange(longest) < np.asarray(lengths, np.int64)[:, None]  # [B, T]
    return layers, mask, carry


class _Group:
    """A group of up to 128 sentences per device that are run side by side."""

    def __init__(self, bilm: OnDevices, sentences: Sequence[Sequence[str]], cut: int = 1) -> None:
        """Keeps the token vectors; `cut` is the number of places that are left out at both ends of a sentence."""
        self._cut = cut
        self._model, self._params, self._devices = bilm.model, bilm.params, bilm.mesh.size
        self._sizes = Sizes.of(bilm.mesh)
        self._by_rows = NamedSharding(bilm.mesh, PartitionSpec(None, AXIS))  # of arrays [2, B, …]
        self._by_steps_and_rows = NamedSharding(bilm.mesh, PartitionSpec(None, None, AXIS))  # of arrays [2, S, B, …]
        marked = [[BEGIN_SENTENCE_WORD, *sentence, END_SENTENCE_WORD] for sentence in sentences]
        flat = bilm.words([word for sentence in marked for word in sentence])
        lengths = np.asarray([len(sentence) for sentence in marked])
        of_sentence = np.split(flat, np.cumsum(lengths)[:-1])  # each [length, P]
        self._order = np.argsort(-lengths, kind="stable")  # the sentence of each row
        self._lengths = lengths[self._order]  # descending
        self._vectors = [of_sentence[sentence] for sentence in self._order]

    def run(self, carry: Tree, row: int, out: np.ndarray | None) -> Tree:
        """Runs both streams of the sentences.

        The rows are sorted by length. Windows cut the steps (here of 32, 8 and 2); between two windows, rows whose
        sentences have ended are left out, as far as one of the sizes remains (here 4, 2 and 1):

            step    0               32              64      66
            row 0   <S> w w … w w w | w w w … w w w | w </S> |
            row 1   <S> w w … w w w | w w </S>      |
            row 2   <S> w </S>      |               |
            row 3   <S> </S>        |               |

        Args:
          carry: the initial state of all rows, which is not changed.
          row: the first row of this group in the carry.
          out: [B, L+1, T, 2P] zeros to be filled, or None to compute only the state.

        Returns:
          The carry, with the rows of this group replaced by their last states.
        """
        if out is not None:
            for vectors, sentence in zip(self._vectors, self._order, strict=True):
                found = vectors[self._cut : len(vectors) - self._cut]
                out[sentence, 0, : len(found)] = np.tile(found, len(self._model.config.directions))
        after = jax.tree.map(np.array, carry)
        rows, start = self._padded(len(self._order)), 0
        pad = ((0, 0), (0, rows - len(self._order)), (0, 0))
        here: Any = jax.tree.map(lambda leaf: np.pad(leaf[:, row + self._order], pad), carry)
        running: tuple[jax.Array, int] | None = None
        while start < self._lengths[0]:
            left = self._lengths[0] - start
            # The largest window that fits into the rest is used, or else the smallest one, which exceeds the rest.
            steps = next((size for size in self._sizes.windows if size <= left), self._sizes.windows[-1])
            needed = self._padded(int(np.sum(self._lengths > start)))
            if needed < rows:
                self._keep(after, row, here, needed)
                # On the host, where `_keep` has just read them; on a device, each slice would be compiled.
                here, rows = jax.tree.map(lambda leaf, rows=needed: np.asarray(leaf)[:, :rows], here), needed
            layers, here = _window(self._model, self._params, *self._window_inputs(start, steps, rows, here))
            if running is not None and out is not None:
                self._place(*running, out)
            running = layers, start
            start += steps
        if running is not None and out is not None:
            self._place(*running, out)
        self._keep(after, row, here, 0)
        return after

    def _padded(self, number: int) -> int:
        return self._devices * next(size for size in self._sizes.rows if size * self._devices >= number)

    def _keep(self, after: Tree, row: int, here: Tree, first: int) -> None:
        """Writes the states of the rows from `first` on into the carry that is returned at the end."""

        def write(leaf: np.ndarray, new: Any) -> None:
            places = row + self._order[first : new.shape[1]]
            leaf[:, places] = np.asarray(new)[:, first : first + len(places)]

        jax.tree.map(write, after, here)

    def _window_inputs(self, start: int, steps: int, rows: int, here: Tree) -> tuple[np.ndarray, Tree, np.ndarray]:
        """Returns the inputs of `_window`: vectors [2, S, B, P], carry and mask [2, S, B].

        They are those of the `steps` steps from `start` on and of the first `rows` rows.
        """
        directions = len(self._model.config.directions)
        vectors = np.zeros((directions, steps, rows, self._vectors[0].shape[1]), np.float32)
        mask = np.zeros((directions, steps, rows), bool)
        for b, words in enumerate(self._vectors[:rows]):
            for d, stream in enumerate((words, words[::-1])[:directions]):
                part = stream[start : start + steps]
                vectors[d, : len(part), b] = part
                mask[d, : len(part), b] = True
        placed, mask_placed = jax.device_put((vectors, mask), self._by_steps_and_rows)
        return placed, jax.device_put(here, self._by_rows), mask_placed

    def _place(self, window: jax.Array, start: int, out: np.ndarray) -> None:
        """Copies the outputs of a window [L, 2, S, B, P] into `out`, without what is cut off at the ends.

        The backward outputs are reversed into the order of the sentence.
        """
        layers = np.asarray(window)
        size, steps, rows = layers.shape[-1], layers.shape[2], layers.shape[3]
        for b, length in enumerate(self._lengths[:rows]):
            # Step t of a stream is place t of the marked sentence, counted from the end in the backward stream.
            first, last = max(start, self._cut), min(start + steps, length - self._cut)
            if first >= last:
                continue
            part, filled = layers[:, :, first - start : last - start, b], out[self._order[b]]  # [L, 2, steps, P]
            filled[1:, first - self._cut : last - self._cut, :size] = part[:, 0]
            if len(self._model.config.directions) == 2:
                filled[1:, length - self._cut - last : length - self._cut - first, size:] = part[:, 1, ::-1]


def check_sentences(sentences: Sequence[Sequence[str]]) -> None:
    """Raises `UserError` unless `sentences` is a list of lists of words."""
    if isinstance(sentences, str):
        raise UserError("sentences: expected a list of lists of words, got one string; split it into words")
    if not _is_list(sentences):
        raise UserError(f"sentences: expected a list of lists of words, got {type(sentences).__name__}")
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise UserError(f"sentences[{number}] is a string, expected a list of words; split it")
        if not _is_list(sentence):
            raise UserError(f"sentences[{number}] is of type {type(sentence).__name__}, expected a list of words")
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
            key(word, max_characters)  # raises if the word cannot be encoded
        ids[row, : len(sentence)] = spell(sentence, max_characters) + 1
    return ids


def _is_list(value: Any) -> bool:
    """Returns whether a value has items in an order, as lists, tuples and NumPy arrays of words have."""
    return (
        isinstance(value, Sequence) and not isinstance(value, bytes) or isinstance(value, np.ndarray) and value.ndim > 0
    )


def _checked_carry(model: BiLM, carry: Tree) -> Tree:
    carry = jax.tree.map(np.asarray, carry)
    found, want = (
        [(path, leaf.shape[:1], leaf.shape[2:]) for path, leaf in jax.tree.leaves_with_path(tree)]
        for tree in (carry, initial_carry(model.config, 0, np.zeros))
    )
    if found != want:
        raise UserError("carry: not of this biLM (other layers or sizes); pass the carry that the last call returned")
    return carry


def _grown(carry: Tree, rows: int) -> Tree:

    def grow(leaf: np.ndarray) -> np.ndarray:
        return np.pad(leaf, ((0, 0), (0, max(0, rows - leaf.shape[1])), (0, 0)))

    return jax.tree.map(grow, carry)
