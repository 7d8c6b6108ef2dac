"""The vectors that a task model reads for words: word vectors, a small character CNN and ELMo, joined.

Shapes: R rows, T words of the longest row, W characters of the longest word, V words with a vector, D numbers per word
vector, S stored numbers of the layers per word, L LSTM layers and P projection of the biLM; C character ids,
E numbers per embedding, F filters of one width.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.checkpoints.layout import parameter_shapes, unflatten
from elmo_jax.config import ModelConfig
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.embed import character_ids, embed_texts
from elmo_jax.model.bilm import BiLM, uniform
from elmo_jax.model.dropout import Dropout
from elmo_jax.model.elmo import ELMo
from elmo_jax.model.scalar_mix import LayerNorm, chosen_layers, mix_weights
from elmo_jax.model.sentences import Trainable, sentence_layers
from elmo_jax.tasks.core.config import CharactersConfig, ElmoConfig, TaskConfig
from elmo_jax.tasks.core.elmo_vectors import stored_size, unpack_layers
from elmo_jax.tasks.core.setup import TaskSetup
from elmo_jax.tasks.core.task import Arrays, Embedded
from elmo_jax.types import Tree

_NARROW = 0.05  # the bound of document-qa's initial embeddings

Rows = Sequence[Sequence[str]]
FrozenLayers = Callable[[Rows], Sequence[Any]]
"""Maps rows of words to the numbers of the frozen layers of each, [T, S], or nothing for rows without words."""


class TextEncoder:
    """Makes the arrays of a text's rows on the host; without `layers`, each step of the training computes them."""

    def __init__(self, setup: TaskSetup[Any, Any], layers: FrozenLayers | None = None) -> None:
        self._config, self._vocabulary, self._bilm, self._layers = setup.config, setup.vocabulary, setup.bilm, layers

    def __call__(self, rows: Sequence[Sequence[str]], number: int, length: int) -> Arrays:
        """Returns the arrays of at most `number` = R rows of at most `length` = T words each; the others are empty.

        They are `mask` bool [R, T], true on words; `words` int32 [R, T] if words have vectors; `characters` int32
        [R, T, W] if there is a character CNN; and with a biLM either `layers` [R, T, S] or `elmo_char_ids` int32
        [R, T, W], which `ELMo` reads.
        """
        has_words = self._config.word_vectors.path or self._config.word_vectors.dim
        most = int(self._config.characters.max_characters) if self._config.characters.filters else 0
        mask, word_ids = np.zeros((number, length), bool), np.zeros((number, length), np.int32)
        characters = np.zeros((number, length, most), np.int32)
        for row, words in enumerate(rows):
            mask[row, : len(words)] = True
            word_ids[row, : len(words)] = list(map(self._vocabulary.word_id, words))
            for step, word in enumerate(words):
                encoded = self._vocabulary.character_ids(word, most)
                characters[row, step, : len(encoded)] = encoded
        arrays: Arrays = {"mask": mask}
        arrays |= {"words": word_ids} if has_words else {}
        arrays |= {"characters": characters} if most else {}
        if self._bilm is not None and self._layers is None:
            arrays["elmo_char_ids"] = character_ids(rows, self._bilm.config.char_cnn.max_characters, number, length)
        elif self._bilm is not None and self._layers is not None:
            size, dtype = stored_size(self._bilm.config), self._config.elmo.stored_dtype
            arrays["layers"] = np.zeros((number, length, size), dtype)
            for row, layers in enumerate(self._layers(rows)):
                if len(layers):
                    arrays["layers"][row, : len(layers)] = layers
        return arrays


def embedded(bilm: EmbeddingBiLM, elmo: ElmoConfig, rows: Rows) -> list[np.ndarray]:
    """Returns the layers of some rows in the form of stored ones, each [T, S], by the program that stores them."""
    ((_, vectors, _),) = embed_texts(bilm.engine, [(None, rows)], elmo.stored_dtype)
    return np.split(vectors, np.cumsum([len(words) for words in rows])[:-1])


class CharCNN(nn.Module):
    """Computes a vector per word from the word's characters.

    The parameters are `embedding` [C, E] and, for the i-th filter width, `filter_i_kernel` [width, E, F] and
    `filter_i_bias` [F]. The maximum is over the windows that start at one of the word's characters and lie within the
    first `max_characters` places, so that unlike in AllenNLP, a word's vector depends on that word alone.
    """

    characters: int  # C, the number of ids including that of padding, 0
    config: CharactersConfig  # E, the pairs (width, F) and the other settings

    @nn.compact
    def __call__(self, ids: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Maps ids [..., W], 0 at padding, to vectors [..., sum of all F], zero for a word without characters."""
        config = self.config
        initial = nn.initializers.xavier_uniform() if config.initial == "xavier" else uniform(_NARROW)
        table = self.param("embedding", initial, (self.characters, config.embedding_dim))
        vectors = jnp.where(ids[..., None] > 0, table[ids], 0.0)  # [..., W, E]
        vectors = Dropout(config.dropout)(vectors, deterministic=deterministic)
        length = (ids > 0).sum(-1)  # [...]
        return jnp.concatenate([self._convolve(i, vectors, length) for i in range(len(config.filters))], axis=-1)

    def _convolve(self, i: int, vectors: jax.Array, length: jax.Array) -> jax.Array:
        """Maps [..., W, E] to the maxima [..., F] of the filters of one width."""
        (width, number), dim = self.config.filters[i], self.config.embedding_dim
        most = max(self.config.max_characters, *(width for width, _ in self.config.filters))
        size = min(vectors.shape[-2] + width - 1, most)
        vectors = jnp.pad(vectors, [*[(0, 0)] * (vectors.ndim - 2), (0, size - vectors.shape[-2]), (0, 0)])
        windows = size - width + 1  # P
        bound = uniform((width * dim) ** -0.5)  # PyTorch's default bound, which AllenNLP keeps
        kernel = self.param(f"filter_{i}_kernel", bound, (width, dim, number))
        bias = self.param(f"filter_{i}_bias", bound, (number,))
        flat = jnp.concatenate([vectors[..., k : k + windows, :] for k in range(width)], axis=-1)  # [..., P, width * E]
        value = jnp.matmul(flat, kernel.reshape(-1, number), precision=lax.Precision.HIGHEST) + bias  # [..., P, F]
        inside = (jnp.arange(windows) < length[..., None])[..., None]  # the windows that start at a character
        return jnp.where(inside, jax.nn.relu(value), 0.0).max(-2)  # ReLU is never below zero


class Inputs(nn.Module):
    """Maps the arrays of a text to `Embedded`; all texts of a task share its parameters."""

    config: TaskConfig  # the experiment
    bilm: ModelConfig | None  # the architecture of the biLM; None if there is none
    word_rows: int = 0  # the number of rows of the table of word vectors
    word_dim: int = 0  # D; 0 means no word vectors
    character_rows: int = 0  # the number of rows of the table of character vectors

    def setup(self) -> None:
        if self.word_dim:
            shape = (self.word_rows, self.word_dim)
            if self.config.word_vectors.trainable:
                self.table = self.param("words", nn.initializers.zeros_init(), shape)
            else:
                self.table = self.variable("frozen", "words", jnp.zeros, shape).value
        characters, elmo = self.config.characters, self.config.elmo
        if characters.filters:
            self.char_cnn = CharCNN(self.character_rows, characters)
        if self.bilm is None:
            return
        if elmo.trainable != "none":  # `TaskProgram.first_state` gives the values
            shapes = parameter_shapes(self.bilm)
            self.tree = self.param("bilm", lambda key: unflatten({name: jnp.zeros(shapes[name]) for name in shapes}))
        self.elmo = ELMo(
            self.bilm,
            num_mixes=len(elmo.positions),
            layers=chosen_layers(int(elmo.layers) if elmo.layers.isdecimal() else elmo.layers),
            layer_norm=LayerNorm(elmo.layer_norm),
            dropout=elmo.dropout,
            regularization=elmo.regularization,
            train_gamma=elmo.train_gamma,
        )

    def __call__(self, text: Mapping[str, jax.Array], *, deterministic: bool) -> tuple[Embedded, jax.Array]:
        """Returns the vectors of a text, and the penalty [] of the mixes: their squares times `regularization`."""
        mask = text["mask"]
        words: list[jax.Array] = []
        if self.word_dim:
            words.append(self.table[text["words"]] * mask[..., None])  # [R, T, D]
        if self.config.characters.filters:
            words.append(self.char_cnn(text["characters"], deterministic=deterministic) * mask[..., None])
        mixes: dict[str, jax.Array] = {}
        penalty = jnp.zeros(())
        if self.bilm is not None:
            mixed = self.elmo.mix(self._layers(text, self.bilm), mask, deterministic=deterministic)
            mixes, penalty = dict(zip(self.config.elmo.positions, mixed.mixes, strict=True)), mixed.penalty
        vectors = jnp.concatenate([*words, mixes["input"]] if "input" in mixes else words, axis=-1)
        joined = jnp.concatenate(words, axis=-1) if words else None
        return Embedded(vectors, mask, mixes.get("output"), joined, mixes.get("after_first")), penalty

    def _layers(self, text: Mapping[str, jax.Array], bilm: ModelConfig) -> jax.Array:
        """Returns the layers [R, L+1, T, 2P], through which gradients flow only into the part that is trained."""
        if "layers" in text:
            return jax.lax.stop_gradient(unpack_layers(text["layers"], bilm))
        if self.is_initializing():  # the parameters of the task do not depend on the biLM
            rows, steps = text["mask"].shape
            return jnp.zeros((rows, bilm.lstm.layers + 1, steps, bilm.width))
        trainable = Trainable(self.config.elmo.trainable)
        tree: Any = self.get_variable("frozen", "bilm") if trainable is Trainable.NONE else self.tree
        layers, _ = sentence_layers(BiLM(bilm, parent=None), tree, text["elmo_char_ids"], trainable=trainable)
        return layers[:, :, 1:-1] * text["mask"][:, None, :, None]


def elmo_mixes(params: Tree, config: TaskConfig) -> dict[str, dict[str, Any]]:
    """Returns the softmaxed `weights` and the `scale` of the mixes by their places; nothing for the token layer."""
    mixes = mix_weights(params.get("inputs", {}).get("elmo", {})).values()
    return {
        position: {"weights": mix.weights.tolist(), "scale": mix.gamma}
        for position, mix in zip(config.elmo.positions, mixes, strict=False)
    }
