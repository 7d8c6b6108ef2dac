"""Implements the SRL model: eight interleaved highway LSTM layers over words and a predicate flag (He et al. 2017).

Shapes: B sentences, one per predicate, T words, D input features per word, F numbers of the flag's embedding, H
units, E numbers of the ELMo mix at the output, N tags.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.layers.crf import bio_transitions, viterbi_decode
from elmo_jax.tasks.layers.recurrent import HighwayLSTM


@dataclasses.dataclass(frozen=True)
class SRLModel:
    """The settings of the model without words and ELMo; defaults are those of He et al. (2017) and the ELMo paper."""

    flag_dim: int = setting(100, "The dimension of the embedding of the predicate flag.", least=1)
    layers: int = setting(8, "The number of highway LSTM layers; even ones run forward, odd ones backward.", least=1)
    units: int = setting(300, "The number of units per layer.", least=1)
    dropout: float = fraction(0.1, "The fraction of units dropped in training, with one mask per layer and sentence.")


class RoleTagger(nn.Module):
    """Tags the arguments of one predicate per row."""

    config: SRLModel  # the settings of the model
    tags: Sequence[str]  # the BIO tags in the order of their ids

    @nn.compact
    def __call__(self, sentence: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes the loss, `log_probabilities` [B, T, N], and the best `tags` int32 [B, T], -1 at padding.

        `arrays` has `flags` int32 [B, T], 1 for the predicate, and `tags` int32 [B, T], the gold tags, arbitrary at
        padding.
        """
        config = self.config
        flags = nn.Embed(2, config.flag_dim, embedding_init=nn.initializers.glorot_uniform(), name="flag")
        inputs = jnp.concatenate([sentence.vectors, flags(arrays["flags"])], axis=-1)  # [B, T, D + F]
        lstm = HighwayLSTM(config.layers, config.units, config.dropout, name="lstm")
        hidden = lstm(inputs, sentence.mask, deterministic=deterministic)  # [B, T, H]
        if sentence.output is not None:
            hidden = jnp.concatenate([hidden, sentence.output], axis=-1)  # [B, T, H + E]
        dense = nn.Dense(
            len(self.tags), kernel_init=nn.initializers.orthogonal(), precision=lax.Precision.HIGHEST, name="output"
        )
        log_probabilities = jax.nn.log_softmax(dense(hidden))  # [B, T, N]
        loss = tagging_loss(log_probabilities, arrays["tags"], sentence.mask)
        decoded = viterbi_decode(lax.stop_gradient(log_probabilities), sentence.mask, bio_transitions(self.tags))
        return TaskOutput(loss, {"log_probabilities": log_probabilities, "tags": decoded.tags})


def tagging_loss(log_probabilities: jax.Array, tags: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of a sentence's tokens, averaged over the sentences that have words, as AllenNLP.

    Args:
      log_probabilities: [B, T, N].
      tags: int32 [B, T], the gold tags.
      mask: [B, T], true on words.
    """
    chosen = jnp.take_along_axis(log_probabilities, jnp.where(mask, tags, 0)[..., None], axis=-1)[..., 0]  # [B, T]
    lengths = mask.sum(-1)  # [B]
    losses = -jnp.where(mask, chosen, 0.0).sum(-1) / jnp.maximum(lengths, 1)
    return losses.sum() / jnp.maximum((lengths > 0).sum(), 1)
