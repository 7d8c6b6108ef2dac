"""Implements the tagger of parts of speech: biLSTM layers and a softmax (the probe of the experiment `task_pos`).

Shapes: B rows, T words of the longest row, D input features per word, W input features without ELMo, H units of
both directions of the top layer, E numbers of the ELMo mix at the output, N tags.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from elmo_jax.errors import UserError
from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.layers.dense import Dense, mean_cross_entropy
from elmo_jax.tasks.layers.recurrent import BiLSTMStack


@dataclasses.dataclass(frozen=True)
class POSModel:
    """The sizes and the dropout of the tagger."""

    layers: tuple[int, ...] = setting(
        (100,), "The number of units per direction of each LSTM layer, lowest first.", least=1, most=2**20
    )
    dropout: float = fraction(
        0.5, "The fraction of units dropped in word vectors and at each LSTM layer's output; ELMo has `elmo.dropout`."
    )

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for a model that cannot be built."""
        if not self.layers:
            raise UserError(f"{where}.layers: expected one or more sizes of at least 1, got {self.layers}")


class SoftmaxTagger(nn.Module):
    """A tagger of biLSTM layers and a softmax; a second mix of ELMo is joined to the output of the top layer."""

    config: POSModel  # the sizes and the dropout
    labels: Sequence[str]  # the N tags in the order of their numbers

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the mean cross-entropy over the words, and `probabilities` [B, T, N].

        `arrays` has `tags` int [B, T], the gold tags, arbitrary past the end of a row.
        """
        drop = Dropout(self.config.dropout)
        inputs = text.vectors  # [B, T, D]
        if text.words is not None:  # ELMo's units have been dropped by the mix already
            own = drop(text.words, deterministic=deterministic)  # [B, T, W]
            inputs = jnp.concatenate([own, inputs[..., own.shape[-1] :]], axis=-1)
        stack = BiLSTMStack(self.config.layers, self.config.dropout, name="encoder")
        hidden = drop(stack(inputs, text.mask, deterministic=deterministic), deterministic=deterministic)  # [B, T, H]
        if text.output is not None:
            hidden = jnp.concatenate([hidden, text.output], axis=-1)  # [B, T, H + E]
        logits = Dense(len(self.labels), name="tag")(hidden)  # [B, T, N]
        loss = mean_cross_entropy(logits, arrays["tags"], text.mask)
        return TaskOutput(loss, {"probabilities": jax.nn.softmax(logits)})
