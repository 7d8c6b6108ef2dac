"""Finds the best sequences of tags under the rules of BIO.

Shapes: B rows, T words, N tags.

Transitions have no learned scores: an allowed one has zero, a forbidden one minus infinity. An I-x follows only B-x or
I-x and, with the start rule, is not the first tag; deep_srl has no start rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.errors import UserError

Scores = Literal["log_probabilities", "probabilities"]
StartRule = Literal["enforced", "ignored"]


class Rules(NamedTuple):
    """The scores of transitions, zero if allowed and minus infinity if forbidden.

    Attributes:
      transitions: float32 [N, N], the scores from the row's tag to the column's.
      starts: float32 [N], the scores of the first tag.
    """

    transitions: np.ndarray
    starts: np.ndarray


def bio_rules(tags: Sequence[str], start_rule: StartRule = "enforced") -> Rules:
    """Returns the rules of BIO tags.

    Args:
      tags: the N tags in the order of their ids, each `O`, `B-…` or `I-…`.
      start_rule: whether the first tag may be I-x ("ignored") or not ("enforced").

    Raises:
      UserError: a tag is not a BIO tag.
    """
    for tag in tags:
        if tag != "O" and tag[:2] not in ("B-", "I-"):
            raise UserError(f"tags: {tag!r} is not a BIO tag; expected 'O', 'B-…' or 'I-…'")
    inside = np.array([tag[:2] == "I-" for tag in tags])
    joined = np.array([[old != "O" and old[2:] == new[2:] for new in tags] for old in tags])
    starts = np.where(inside & (start_rule == "enforced"), -np.inf, 0.0)
    return Rules(np.where(inside & ~joined, -np.inf, 0.0).astype(np.float32), starts.astype(np.float32))


def viterbi(scores: jax.Array, mask: jax.Array, rules: Rules) -> tuple[jax.Array, jax.Array]:
    """Returns the best allowed sequence of tags of each row.

    Args:
      scores: [B, T, N], the score of each tag at each word. Log-probabilities give the most probable sequence;
        AllenNLP's SRL model has probabilities, which give other sequences.
      mask: [B, T], true on words; rows are padded at their end.
      rules: the rules of the tags.

    Returns:
      The tags int32 [B, T], 0 at padding, and the sums of the chosen scores [B].
    """
    transitions, starts = jnp.asarray(rules.transitions), jnp.asarray(rules.starts)
    rows, steps, number = scores.shape
    same = jnp.broadcast_to(jnp.arange(number), (rows, number))

    def forward(best: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        score, word = at
        paths = best[:, :, None] + transitions  # [B, N, N]
        new = jnp.where(word[:, None], paths.max(1) + score, best)
        return new, jnp.where(word[:, None], paths.argmax(1), same)

    first = starts + jnp.where(mask[:, :1], scores[:, 0], 0.0)  # [B, N]
    best, came_from = lax.scan(forward, first, (scores.swapaxes(0, 1)[1:], mask.T[1:]))

    def backward(tag: jax.Array, pointers: jax.Array) -> tuple[jax.Array, jax.Array]:
        before = jnp.take_along_axis(pointers, tag[:, None], axis=1)[:, 0]
        return before, before

    last = best.argmax(-1)  # [B]
    _, earlier = lax.scan(backward, last, came_from, reverse=True)
    tags = jnp.concatenate([earlier, last[None]]).T  # [B, T]
    return jnp.where(mask, tags, 0).astype(jnp.int32), best.max(-1)
