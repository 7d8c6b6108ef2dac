"""Implements the biLSTM-CRF tagger of named entities (paper, section 4, and its supplement; Lample et al. 2016).

Shapes: B rows, T words of the longest row, D input features per word, H units of both directions of the top layer,
E numbers of the ELMo mix at the output, N tags.
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
from elmo_jax.tasks.layers.crf import CRF, Encoding, allowed_transitions, constrained, log_likelihood, viterbi_decode
from elmo_jax.tasks.layers.dense import Dense
from elmo_jax.tasks.layers.recurrent import BiLSTMStack


@dataclasses.dataclass(frozen=True)
class NERModel:
    """The sizes and the dropout of the tagger; the defaults are the paper's (its supplement)."""

    layers: tuple[int, ...] = setting(
        (200, 100), "The number of units per direction of each LSTM layer, lowest first.", least=1, most=2**20
    )
    dropout: float = fraction(
        0.5, "The fraction of the units dropped at the input of every LSTM layer; the paper does not state it."
    )
    encoding: Encoding = setting("BIOUL", "The notation of spans as tags.")

    def check(self, where: str = "config") -> None:
        """Raises `UserError` for a model that cannot be built."""
        if not self.layers:
            raise UserError(f"{where}.layers: expected one or more sizes of at least 1, got {self.layers}")


class Tagger(nn.Module):
    """A tagger of biLSTM layers, a dense layer and a CRF.

    ELMo may also be joined to the top layer's output, or to that of the first layer as in TagLM (Peters et al. 2017).
    """

    config: NERModel  # the sizes and the dropout
    labels: Sequence[str]  # the N tags in the order of their numbers

    @nn.compact
    def __call__(self, text: Embedded, arrays: Mapping[str, jax.Array], *, deterministic: bool = True) -> TaskOutput:
        """Computes minus the log-likelihood of the gold tags summed over the batch, and the best tags.

        `arrays` has `tags` int [B, T], the gold tags, arbitrary past a row's end. Predicted are `tags` int32 [B, T],
        the best that the encoding allows, -1 past a row's end.
        """
        config = self.config
        inputs = Dropout(config.dropout, "variational")(text.vectors, deterministic=deterministic)  # [B, T, D]
        stack = BiLSTMStack(config.layers, config.dropout, "variational", name="encoder")
        encoded = stack(inputs, text.mask, text.after_first, deterministic=deterministic)  # [B, T, H]
        self.sow("intermediates", "encoded", encoded)
        if text.output is not None:
            encoded = jnp.concatenate([encoded, text.output], axis=-1)  # [B, T, H + E]
        logits = Dense(len(self.labels), name="tag")(encoded)  # [B, T, N]
        self.sow("intermediates", "logits", logits)
        transitions = CRF(len(self.labels), name="crf")()
        loss = -log_likelihood(logits, arrays["tags"], text.mask, transitions).sum()
        allowed = allowed_transitions(self.labels, config.encoding)
        decoded = viterbi_decode(logits, text.mask, constrained(transitions, allowed))
        return TaskOutput(loss, {"tags": decoded.tags})
