"""The SRL model: eight interleaved highway LSTM layers over words and a predicate flag (He et al. 2017).

Shapes: B sentences, one per predicate, T words, D input of a word, F flag embedding, H units, E ELMo, N tags.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.settings import setting
from elmo_jax.tasks.embedded import Embedded, TaskOutput
from elmo_jax.tasks.layers.highway_lstm import HighwayLSTM, HighwaySettings
from elmo_jax.tasks.srl.decode import bio_rules, viterbi


@dataclasses.dataclass(frozen=True)
class SRLModel:
    """The SRL model without its words and ELMo; defaults of He et al. (2017) and of the ELMo paper."""

    flag_dim: int = setting(100, "Numbers in the vector of the predicate flag.", least=1)
    layers: int = setting(8, "Highway LSTM layers; even ones run forward, odd ones backward.", least=1)
    units: int = setting(300, "Units of a layer.", least=1)
    dropout: float = setting(
        0.1, "Share of the units dropped in training, with one mask per layer and sentence.", least=0, below=1
    )
    form: Literal["original", "allennlp"] = setting(
        "original", "Whether dropout acts on a layer's output, as in deep_srl, or only on the state that is fed back."
    )
    bias: Literal["all", "gates"] = setting(
        "all", "Whether the input that bypasses a layer has a bias; AllenNLP's ELMo configs have none ('gates')."
    )
    loss: Literal["token_mean", "token_sum"] = setting(
        "token_mean",
        "What is averaged over sentences: the mean of a sentence's tokens, as AllenNLP, or their sum, as deep_srl.",
    )
    viterbi_scores: Literal["log_probabilities", "probabilities"] = setting(
        "log_probabilities", "What decoding adds up; AllenNLP adds probabilities, which prefers other sequences."
    )
    start_rule: Literal["enforced", "ignored"] = setting(
        "enforced", "Whether a sentence may not begin with an I- tag; deep_srl ignores this rule."
    )


class SRL(nn.Module):
    """Tags the arguments of one predicate per row.

    Attributes:
      config: settings of the model.
      tags: the BIO tags in the order of their ids.
    """

    config: SRLModel
    tags: tuple[str, ...]

    @nn.compact
    def __call__(self, sentence: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Scores the tags of every word and compares them with the gold ones.

        Args:
          sentence: with `output`, its ELMo is joined after the last layer.
          arrays: `flags` int32 [B, T], 1 on the predicate; `tags` int32 [B, T], any id at padding.
          deterministic: whether nothing is dropped; otherwise a `dropout` key is needed.

        Returns:
          The loss, and `log_probabilities` [B, T, N] and `tags` int32 [B, T], the best sequence that the rules of BIO
          tags allow.
        """
        config = self.config
        flags = nn.Embed(2, config.flag_dim, embedding_init=nn.initializers.glorot_uniform(), name="flag")
        inputs = jnp.concatenate([sentence.vectors, flags(arrays["flags"])], axis=-1)  # [B, T, D + F]
        settings = HighwaySettings(config.form)
        lstm = HighwayLSTM(config.layers, config.units, settings, config.bias, config.dropout, name="lstm")
        hidden = lstm(inputs, sentence.mask, deterministic=deterministic)  # [B, T, H]
        if sentence.output is not None:
            hidden = jnp.concatenate([hidden, sentence.output], axis=-1)  # [B, T, H + E]
        dense = nn.Dense(
            len(self.tags),
            kernel_init=nn.initializers.orthogonal(),
            precision=lax.Precision.HIGHEST,
            name="output",
        )
        log_probabilities = jax.nn.log_softmax(dense(hidden))  # [B, T, N]
        loss = tagging_loss(log_probabilities, arrays["tags"], sentence.mask, config.loss)
        return TaskOutput(
            loss, {"log_probabilities": log_probabilities, "tags": self._decode(log_probabilities, sentence.mask)}
        )

    def _decode(self, log_probabilities: jax.Array, mask: jax.Array) -> jax.Array:
        scores = lax.stop_gradient(log_probabilities)
        if self.config.viterbi_scores == "probabilities":
            scores = jnp.exp(scores)
        tags, _ = viterbi(scores, mask, bio_rules(self.tags, self.config.start_rule))
        return tags


def tagging_loss(
    log_probabilities: jax.Array, tags: jax.Array, mask: jax.Array, form: Literal["token_mean", "token_sum"]
) -> jax.Array:
    """The cross-entropy of a batch, averaged over its sentences that have words.

    Args:
      log_probabilities: [B, T, N].
      tags: int32 [B, T].
      mask: [B, T], true on words.
      form: whether a sentence counts with the mean or the sum of its tokens.
    """
    chosen = jnp.take_along_axis(log_probabilities, jnp.where(mask, tags, 0)[..., None], axis=-1)[..., 0]  # [B, T]
    losses = -jnp.where(mask, chosen, 0.0).sum(-1)  # [B]
    lengths = mask.sum(-1)
    if form == "token_mean":
        losses = losses / jnp.maximum(lengths, 1)
    return losses.sum() / jnp.maximum((lengths > 0).sum(), 1)
