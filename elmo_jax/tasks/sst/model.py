"""Implements the biattentive classification network (BCN) with one input (McCann et al. 2017; paper, section 4).

Shapes: B rows, T words of the longest row, D input features per word, X encoder units of both directions, Z
integrator units of both directions, E numbers of the ELMo mix at the output, P = Z + E pooled numbers per word.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.config import WIDEST
from elmo_jax.errors import UserError
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.layers.dense import (
    Dense,
    SelfAttentivePooling,
    dot_product_scores,
    masked_max,
    masked_mean,
    masked_min,
    mean_cross_entropy,
    product,
)
from elmo_jax.tasks.layers.recurrent import BiLSTM


@dataclasses.dataclass(frozen=True)
class SSTModel:
    """The sizes and the dropout of the BCN; the output layers are the paper's, all other defaults AllenNLP's."""

    input_dropout: float = fraction(
        0.5, "The fraction of the input's units dropped; AllenNLP has 0.5 with ELMo and 0.25 without."
    )
    pre_encoder: int = setting(300, "The number of units of the lowest dense layer.", least=1, most=WIDEST)
    pre_encoder_dropout: float = fraction(0.25, "The fraction of the lowest dense layer's units dropped.")
    encoder: int = setting(300, "The number of units per direction of the encoder.", least=1, most=WIDEST)
    integrator: int = setting(300, "The number of units per direction of the integrator.", least=1, most=WIDEST)
    pooled_dropout: float = fraction(0.1, "The fraction of the pooled units dropped.")
    output: Literal["feedforward", "maxout"] = setting(
        "feedforward", "The layers after the pooling: dense layers with ReLU as in the paper, or maxout as in AllenNLP."
    )
    output_layers: tuple[int, ...] = setting(
        (1200, 600), "The number of units of each output layer below that of the classes.", least=1, most=WIDEST
    )
    output_dropout: tuple[float, ...] = fraction((0.2, 0.3), "The fraction of units dropped in each output layer.")
    maxout_pool: int = setting(4, "The number of linear functions per unit of a maxout layer.", least=1, most=1000)

    def check(self, where: str = "config") -> None:
        if len(self.output_dropout) != len(self.output_layers):
            raise UserError(
                f"{where}.output_dropout: expected one rate for each of the {len(self.output_layers)} layers of"
                f" output_layers, got {len(self.output_dropout)}"
            )


class Maxout(nn.Module):
    """Maps [..., D] to [..., F] by layers of maxima of K linear functions (Goodfellow et al. 2013), each with dropout.

    The parameters are `dense_i` with `kernel` [D, F * K], in which the K functions of a unit are adjacent.
    """

    sizes: Sequence[int]  # F of each layer
    dropouts: Sequence[float]  # the fraction of the outputs that is dropped, for each layer
    pool: int = 4  # K

    @nn.compact
    def __call__(self, inputs: jax.Array, *, deterministic: bool = True) -> jax.Array:
        for i, (size, dropout) in enumerate(zip(self.sizes, self.dropouts, strict=True)):
            pieces = Dense(size * self.pool, name=f"dense_{i}")(inputs)
            inputs = pieces.reshape(*pieces.shape[:-1], size, self.pool).max(-1)  # [..., F]
            inputs = Dropout(dropout)(inputs, deterministic=deterministic)
        return inputs


class BCN(nn.Module):
    """A classifier of an encoder, attention of the sentence on itself, an integrator, four poolings and output layers.

    A second mix of ELMo is joined to the integrator's output, before the pooling.
    """

    config: SSTModel
    classes: int = 5  # the number of classes

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the mean cross-entropy over the rows with words, and `probabilities` [B, classes].

        `arrays` has `label` int [B]. A row without words only fills up the batch.
        """
        config, mask = self.config, text.mask
        inputs = Dropout(config.input_dropout)(text.vectors, deterministic=deterministic)  # [B, T, D]
        inputs = jax.nn.relu(Dense(config.pre_encoder, name="pre_encoder")(inputs))
        inputs = Dropout(config.pre_encoder_dropout)(inputs, deterministic=deterministic)
        encoded = BiLSTM(config.encoder, name="encoder")(inputs, mask)  # [B, T, X]
        # Each word attends to all words of its sentence, including itself.
        weights = jax.nn.softmax(dot_product_scores(encoded, encoded), where=mask[:, None, :])  # [B, T, T]
        context = product(weights, encoded)
        joined = jnp.concatenate([encoded, encoded - context, encoded * context], axis=-1)  # [B, T, 3X]
        integrated = BiLSTM(config.integrator, name="integrator")(joined, mask)  # [B, T, Z]
        for name, value in (("encoded", encoded), ("integrated", integrated)):
            self.sow("intermediates", name, value)
        if text.output is not None:
            integrated = jnp.concatenate([integrated, text.output], axis=-1)  # [B, T, P]
        attentive = SelfAttentivePooling(name="self_attentive_pooling")(integrated, mask)
        pooled = [pool(integrated, mask) for pool in (masked_max, masked_min, masked_mean)]
        vectors = jnp.concatenate([*pooled, attentive], axis=-1)  # [B, 4P]
        self.sow("intermediates", "pooled", vectors)
        vectors = Dropout(config.pooled_dropout)(vectors, deterministic=deterministic)
        logits = self._output(vectors, deterministic)  # [B, classes]
        self.sow("intermediates", "logits", logits)
        loss = mean_cross_entropy(logits, arrays["label"], mask.any(1))
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})

    def _output(self, vectors: jax.Array, deterministic: bool) -> jax.Array:
        config = self.config
        if config.output == "maxout":
            sizes, dropouts = (*config.output_layers, self.classes), (*config.output_dropout, 0.0)
            return Maxout(sizes, dropouts, config.maxout_pool, name="output")(vectors, deterministic=deterministic)
        for i, (size, rate) in enumerate(zip(config.output_layers, config.output_dropout, strict=True)):
            vectors = jax.nn.relu(Dense(size, name=f"output_{i}")(vectors))
            vectors = Dropout(rate)(vectors, deterministic=deterministic)
        return Dense(self.classes, name=f"output_{len(config.output_layers)}")(vectors)
