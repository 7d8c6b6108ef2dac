"""Computes the vectors that a task model reads for words: word vectors, characters and ELMo, joined.

Shapes: R rows, T words of the longest row, W characters, V words with a vector, D numbers per word vector, S stored
numbers of the layers per word, L LSTM layers and P projection of the biLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from elmo_jax.config import ModelConfig
from elmo_jax.embedding.bilm import EmbeddingBiLM
from elmo_jax.embedding.flax import character_ids
from elmo_jax.model.bilm import BiLM
from elmo_jax.model.scalar_mix import LayerNorm, Layers, ScalarMix
from elmo_jax.model.sentences import sentence_layers
from elmo_jax.tasks.core.config import CharactersConfig, ElmoConfig, TaskConfig
from elmo_jax.tasks.core.elmo_vectors import Layers as StoredLayers
from elmo_jax.tasks.core.elmo_vectors import packed, stored_size, unpacked
from elmo_jax.tasks.core.model_types import Embedded
from elmo_jax.tasks.core.vocabulary import Vocabulary
from elmo_jax.tasks.layers.char_cnn import CharCNN
from elmo_jax.tasks.layers.dropout import Dropout

Arrays = dict[str, np.ndarray]


class TextEncoder:
    """Makes the arrays of a text's rows on the host."""

    def __init__(
        self,
        config: TaskConfig,
        vocabulary: Vocabulary,
        bilm: EmbeddingBiLM | None,
        layers: StoredLayers | None,
        embeds: bool = False,
    ) -> None:
        """Keeps the tables in which words are looked up.

        Args:
          config: the experiment.
          vocabulary: the words and characters that have vectors.
          bilm: the frozen biLM; None if the experiment has none.
          layers: the stored layers of the biLM; None if each step or this object computes them.
          embeds: whether this object computes the layers, by `bilm.embed`, which reads long texts in windows.
        """
        self._config, self._vocabulary, self._bilm, self._layers = config, vocabulary, bilm, layers
        self._embeds = embeds

    def __call__(self, rows: Sequence[Sequence[str]], number: int, length: int) -> Arrays:
        """Returns the arrays of some rows.

        Args:
          rows: at most `number` rows of at most `length` words each; the others are empty.
          number: R.
          length: T.

        Returns:
          `mask` bool [R, T], true on words; `words` int32 [R, T] if words have vectors; `characters` int32 [R, T, W] if
          there is a character CNN; with a biLM either `layers` [R, T, S] or `spelling` int32 [R, T, W], the character
          ids that `ELMo` reads.
        """
        mask = np.zeros((number, length), bool)
        for row, words in enumerate(rows):
            mask[row, : len(words)] = True
        arrays: Arrays = {"mask": mask}
        if self._config.word_vectors.path or self._config.word_vectors.dim:
            arrays["words"] = np.zeros((number, length), np.int32)
            for row, words in enumerate(rows):
                arrays["words"][row, : len(words)] = [self._vocabulary.word_id(word) for word in words]
        if self._config.characters.filters:
            arrays["characters"] = self._characters(rows, number, length)
        if self._layers is not None and self._bilm is not None:
            stored = np.zeros((number, length, stored_size(self._bilm.config)), self._config.elmo.dtype)
            for row, words in enumerate(rows):
                if words:
                    stored[row, : len(words)] = self._layers[words]
            arrays["layers"] = stored
        elif self._bilm is not None and self._embeds:
            stored = np.zeros((number, length, stored_size(self._bilm.config)), np.float32)
            layers, _, _ = self._bilm.embed(rows)
            for row, words in enumerate(rows):
                stored[row, : len(words)] = packed(layers[row, :, : len(words)])
            # A training with stored layers has read them in this type.
            arrays["layers"] = (
                stored.astype(self._config.elmo.dtype) if self._config.elmo.vectors == "cached" else stored
            )
        elif self._bilm is not None:
            padded = [*rows, *([()] * (number - len(rows)))]
            found = character_ids(padded, self._bilm.config.char_cnn.max_characters)
            arrays["spelling"] = np.zeros((number, length, found.shape[2]), np.int32)
            arrays["spelling"][:, : found.shape[1]] = found
        return arrays

    def _characters(self, rows: Sequence[Sequence[str]], number: int, length: int) -> np.ndarray:
        """Returns the character ids [R, T, W]; W is one of at most four widths, so that few shapes occur.

        A width is used only where it saves at least a third, since each one is a program to compile.
        """
        most = self._config.characters.max_characters
        longest = max((len(word) for words in rows for word in words), default=1)
        width = next((size for size in (16, 32, 64) if longest <= size <= most * 2 / 3), most)
        found = np.zeros((number, length, width), np.int32)
        for row, words in enumerate(rows):
            for step, word in enumerate(words):
                ids = self._vocabulary.character_ids(word, width)
                found[row, step, : len(ids)] = ids
        return found


@dataclasses.dataclass(frozen=True)
class InputSettings:
    """The settings that `Inputs` is built from.

    Attributes:
      word_rows: the number of rows of the table of word vectors.
      word_dim: the dimension of a word vector; 0 means no word vectors.
      words_trainable: whether the table is a parameter; otherwise it is given in the collection `constants`.
      character_rows: the number of rows of the table of character vectors.
      characters: the settings of the character CNN, which has no filters if there is none.
      bilm: the architecture of the biLM; None if there is none.
      elmo: how the biLM enters the task model.
    """

    word_rows: int
    word_dim: int
    words_trainable: bool
    character_rows: int
    characters: CharactersConfig
    bilm: ModelConfig | None
    elmo: ElmoConfig

    @property
    def has_input(self) -> bool:
        """Whether ELMo enters at the input of the task's RNN."""
        return self.bilm is not None and self.elmo.where in ("input", "both")

    @property
    def has_output(self) -> bool:
        """Whether ELMo enters at the output of the task's RNN."""
        return self.bilm is not None and self.elmo.where in ("output", "both")


class ElmoMix(nn.Module):
    """Combines the frozen layers to one vector per word: a mix, one scaled layer, or the unscaled token layer."""

    settings: ElmoConfig

    @nn.compact
    def __call__(self, layers: jax.Array, mask: jax.Array, *, deterministic: bool) -> tuple[jax.Array, jax.Array]:
        """Maps [R, L+1, T, 2P] to [R, T, 2P] or, for the token layer, [R, T, P].

        Also returns the sum of the squares of the mix's raw weights, [].
        """
        choice, norm = self.settings.layers, LayerNorm.WITHOUT_MARKS if self.settings.layer_norm else LayerNorm.NONE
        squares = jnp.zeros(())
        if choice == "token":
            mixed = layers[:, 0, :, : layers.shape[-1] // 2] * mask[..., None]
        elif choice == "all":
            mixed, squares = ScalarMix(Layers.ALL, norm, name="mix")(layers, mask)
        else:
            number = layers.shape[1] - 1 if choice == "top" else int(choice)
            mixed, _ = ScalarMix(Layers.TOP, name="mix")(layers[:, number : number + 1], mask)
        return Dropout(self.settings.dropout)(mixed, deterministic=deterministic), squares


class Inputs(nn.Module):
    """Maps the arrays of a text to `Embedded`; all texts of a task share its parameters."""

    settings: InputSettings

    def setup(self) -> None:
        """Declares the word table, the character CNN and the mixes."""
        settings = self.settings
        if settings.word_dim:
            shape = (settings.word_rows, settings.word_dim)
            if settings.words_trainable:
                self.table = self.param("words", nn.initializers.zeros_init(), shape)
            else:
                self.table = self.variable("constants", "words", jnp.zeros, shape).value
        if settings.characters.filters:
            characters = settings.characters
            self.char_cnn = CharCNN(
                settings.character_rows,
                characters.embedding_dim,
                characters.filters,
                max(characters.max_characters, *(width for width, _ in characters.filters)),
                "independent" if characters.variant == "masked" else "allennlp",
                characters.initial,
                characters.dropout,
            )
        if settings.has_input:
            self.input_mix = ElmoMix(settings.elmo)
        if settings.has_output:
            self.output_mix = ElmoMix(settings.elmo)

    def __call__(self, text: Mapping[str, jax.Array], *, deterministic: bool) -> tuple[Embedded, jax.Array]:
        """Returns the vectors of a text, and the penalty [] of the mixes: their squares times `regularization`."""
        settings, mask = self.settings, text["mask"]
        words: list[jax.Array] = []
        if settings.word_dim:
            words.append(self.table[text["words"]] * mask[..., None])  # [R, T, D]
        if settings.characters.filters:
            found = self.char_cnn(text["characters"], deterministic=deterministic)
            words.append(found * mask[..., None])
        joined = jnp.concatenate(words, axis=-1) if words else None
        vectors, output, squares = list(words), None, jnp.zeros(())
        if settings.bilm is not None:
            layers = self._layers(text)
            if settings.has_input:
                mixed, found = self.input_mix(layers, mask, deterministic=deterministic)
                vectors.append(mixed)
                squares += found
            if settings.has_output:
                output, found = self.output_mix(layers, mask, deterministic=deterministic)
                squares += found
        embedded = Embedded(jnp.concatenate(vectors, axis=-1), mask, output, joined)
        return embedded, settings.elmo.regularization * squares

    def _layers(self, text: Mapping[str, jax.Array]) -> jax.Array:
        """Returns the frozen layers [R, L+1, T, 2P], through which no gradient flows."""
        bilm = self.settings.bilm
        assert bilm is not None
        if "layers" in text:
            return jax.lax.stop_gradient(unpacked(text["layers"], bilm.lstm.projection))
        if self.is_initializing():  # the parameters of the task do not depend on the biLM
            rows, steps = text["mask"].shape
            return jnp.zeros((rows, bilm.lstm.layers + 1, steps, 2 * bilm.lstm.projection))
        tree: Any = self.get_variable("constants", "bilm")
        layers, _ = sentence_layers(BiLM(bilm, parent=None), tree, text["spelling"])
        return layers[:, :, 1:-1] * text["mask"][:, None, :, None]
