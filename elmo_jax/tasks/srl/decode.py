"""The best tag sequence under the hard rules of BIO tags.

Shapes: B rows, T words, N tags.

Nothing is learned here: a forbidden transition scores minus infinity, an allowed one nothing. An I-x stands only behind
B-x or I-x, and, with the start rule, not at the beginning; deep_srl has no start rule.
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
    """The scores of transitions, zero where allowed and minus infinity where not.

    Attributes:
      transitions: float32 [N, N], from the row's tag to the column's.
      starts: float32 [N], of the first tag.
    """

    transitions: np.ndarray
    starts: np.ndarray


def bio_rules(tags: Sequence[str], start_rule: StartRule = "enforced") -> Rules:
    """The rules of BIO tags.

    Args:
      tags: the N tags in the order of their ids, each `O`, `B-…` or `I-…`.
      start_rule: whether an I-x at the beginning is forbidden.

    Raises:
      UserError: something that is no BIO tag.
    """
    for tag in tags:
        if tag != "O" and tag[:2] not in ("B-", "I-"):
            raise UserError(f"tags: {tag!r} is no BIO tag; expected 'O', 'B-…' or 'I-…'")
    inside = np.array([tag[:2] == "I-" for tag in tags])
    joined = np.array([[old != "O" and old[2:] == new[2:] for new in tags] for old in tags])
    starts = np.where(inside & (start_rule == "enforced"), -np.inf, 0.0)
    return Rules(np.where(inside & ~joined, -np.inf, 0.0).astype(np.float32), starts.astype(np.float32))


def viterbi(scores: jax.Array, mask: jax.Array, rules: Rules) -> tuple[jax.Array, jax.Array]:
    """The best allowed tag sequence of each row.

    Args:
      scores: [B, T, N] of each tag at each word. Log-probabilities give the most probable sequence; AllenNLP's SRL
        model gives probabilities, which decode differently.
      mask: [B, T], true on words; rows are padded at their end.
      rules: of the tags.

    Returns:
      Tags int32 [B, T], 0 at padding, and the sums of the chosen scores [B].
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
