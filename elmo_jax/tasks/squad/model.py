"""Implements the SQuAD model: BiDAF with residual self-attention (document-qa; Clark and Gardner 2018).

Shapes: B questions with their contexts, T words of the context, J words of the question, D input features per word,
E numbers of the ELMo mix at the output, H units per direction.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from elmo_jax.model.dropout import Dropout
from elmo_jax.settings import fraction, setting
from elmo_jax.tasks.core.task import Embedded, TaskOutput
from elmo_jax.tasks.squad.attention import MASKED, BiDAFAttention, SelfAttention
from elmo_jax.tasks.squad.gru import BiGRU


@dataclasses.dataclass(frozen=True)
class SquadModel:
    """The settings of the model without words, characters and ELMo; defaults are those of document-qa's ELMo script."""

    units: int = setting(90, "The number of units per direction of every GRU.", least=1)
    dropout: float = fraction(
        0.2, "The fraction of features dropped in training, with one mask for all words of a row."
    )
    longest_answer: int = setting(17, "The maximum number of words of a predicted answer.", least=1)


class SpanFinder(nn.Module):
    """Finds the words of the context that answer the question."""

    config: SquadModel  # the settings of the model

    @nn.compact
    def __call__(
        self, question: Embedded, context: Embedded, arrays: dict[str, jax.Array], *, deterministic: bool = True
    ) -> TaskOutput:
        """Computes the loss, and the probabilities `start` and `end` [B, T] of the answer's first and last word.

        `arrays` has `answers` int32 [B, 2], the first and the last word of the gold answer, both inclusive. The
        probabilities can be averaged over the models of an ensemble (paper, section 4) and are zero at padding.
        """
        units, mask = self.config.units, context.mask
        encoder = BiGRU(units, name="encoder")
        read, asked = (self._read(encoder, text, deterministic) for text in (context, question))
        both = BiDAFAttention(name="attention")(read, asked, mask, question.mask)  # [B, T, 4 (2H + E)]
        joined = nn.relu(self._dense(2 * units, "joined")(both))  # [B, T, 2H]
        hidden = joined + self._attended(joined, mask, deterministic)
        hidden = Dropout(self.config.dropout, "variational")(hidden, deterministic=deterministic)
        first = BiGRU(units, name="start")(hidden, mask)
        last = BiGRU(units, name="end")(jnp.concatenate([hidden, first], axis=-1), mask)
        start = jnp.where(mask, self._dense(1, "start_logits")(first)[..., 0], MASKED)  # [B, T]
        end = jnp.where(mask, self._dense(1, "end_logits")(last)[..., 0], MASKED)
        self.sow("intermediates", "logits", (start, end))
        loss = answer_loss(start, end, arrays["answers"], mask)
        return TaskOutput(loss, {"start": jax.nn.softmax(start), "end": jax.nn.softmax(end)})

    def _read(self, encoder: BiGRU, text: Embedded, deterministic: bool) -> jax.Array:
        """Applies the first GRU to the context or the question and joins the output ELMo, [B, T, 2H + E]."""
        dropout = self.config.dropout
        hidden = encoder(Dropout(dropout, "variational")(text.vectors, deterministic=deterministic), text.mask)
        hidden = Dropout(dropout, "variational")(hidden, deterministic=deterministic)
        return hidden if text.output is None else jnp.concatenate([hidden, text.output], axis=-1)

    def _attended(self, joined: jax.Array, mask: jax.Array, deterministic: bool) -> jax.Array:
        """Returns what the residual self-attention adds to `joined`, [B, T, 2H]."""
        dropout, units = self.config.dropout, self.config.units
        hidden = Dropout(dropout, "variational")(joined, deterministic=deterministic)
        hidden = BiGRU(units, name="self_encoder")(hidden, mask)
        hidden = Dropout(dropout, "variational")(hidden, deterministic=deterministic)
        hidden = SelfAttention(name="self_attention")(hidden, mask)  # [B, T, 6H]
        return nn.relu(self._dense(2 * units, "self_joined")(hidden))

    def _dense(self, size: int, name: str) -> nn.Dense:
        initial = nn.initializers.glorot_uniform()  # original
        return nn.Dense(size, kernel_init=initial, precision=lax.Precision.HIGHEST, name=name)


def answer_loss(start: jax.Array, end: jax.Array, answers: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of the first words plus that of the last words over rows that have words.

    Args:
      start: [B, T], the logits of the first word; `end` has those of the last.
      answers: int32 [B, 2], the first and the last words of the gold answers.
      mask: [B, T], true on words.
    """
    losses = jnp.zeros(start.shape[0])
    for side, logits in enumerate((start, end)):
        chosen = jnp.take_along_axis(logits, answers[:, side : side + 1], axis=1)[:, 0]
        losses += jax.nn.logsumexp(logits, axis=-1) - chosen  # [B]
    filled = mask.any(-1)
    return jnp.where(filled, losses, 0.0).sum() / jnp.maximum(filled.sum(), 1)
