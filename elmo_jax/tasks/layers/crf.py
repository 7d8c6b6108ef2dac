"""Implements the linear-chain CRF and Viterbi decoding (Lafferty et al. 2001; Lample et al. 2016).

Shapes: B rows, T words of the longest row, N tags. All masks are [B, T], true on words; rows are padded at their end.

The likelihood is over all sequences of tags; the transitions that a tag encoding forbids are excluded in decoding only.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from elmo_jax.errors import UserError

Encoding = Literal["BIOUL", "BIO"]

FORBIDDEN = -10000.0  # AllenNLP's score of a transition that the encoding forbids


class Transitions(NamedTuple):
    """The scores of a chain for decoding, other than those of its tags."""

    between: jax.Array  # [N, N], the score of tag j after tag i
    start: jax.Array | float = 0.0  # [N], the score of a row's first tag
    end: jax.Array | float = 0.0  # [N], the score of a row's last tag


def log_likelihood(logits: jax.Array, tags: jax.Array, mask: jax.Array, transitions: jax.Array) -> jax.Array:
    """Returns the log-probabilities [B] of the given sequences among all; zero for a row without words.

    The logits are [B, T, N], the tags int [B, T], and the transitions [N, N] the score of tag j after tag i.
    """
    rows = path_scores(logits, tags, mask, transitions) - log_partition(logits, mask, transitions)
    return jnp.where(mask.any(1), rows, 0.0)


def path_scores(logits: jax.Array, tags: jax.Array, mask: jax.Array, transitions: jax.Array) -> jax.Array:
    """Returns the scores [B] of the given sequences; the arguments are those of `log_likelihood`."""
    tags = jnp.where(mask, tags, 0)
    scores = jnp.where(mask, jnp.take_along_axis(logits, tags[..., None], 2)[..., 0], 0.0).sum(1)
    return scores + jnp.where(mask[:, 1:], transitions[tags[:, :-1], tags[:, 1:]], 0.0).sum(1)


def log_partition(logits: jax.Array, mask: jax.Array, transitions: jax.Array) -> jax.Array:
    """Returns the logarithms [B] of the sums of exp(score) over all sequences; see `log_likelihood`."""

    def step(total: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        logit, real = at
        reached = jax.nn.logsumexp(total[:, :, None] + transitions, axis=1) + logit  # [B, N]
        return jnp.where(real[:, None], reached, total), None

    total, _ = lax.scan(step, logits[:, 0], (logits.swapaxes(0, 1)[1:], mask.T[1:]))
    return jax.nn.logsumexp(total, axis=1)


def viterbi_decode(scores: jax.Array, mask: jax.Array, transitions: Transitions) -> jax.Array:
    """Returns the tags int32 [B, T] with the highest sums of `scores` [B, T, N] and `transitions`, -1 past a row's end.

    Of equal sums, the tag with the lower number wins.
    """

    def step(best: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        score, real = at
        reached = best[:, :, None] + transitions.between  # [B, N from, N to]
        value, source = reached.max(1) + score, reached.argmax(1)
        # Past the end of a row, the best sums do not change and point at themselves.
        return jnp.where(real[:, None], value, best), jnp.where(real[:, None], source, jnp.arange(scores.shape[-1]))

    start = transitions.start + scores[:, 0]  # [B, N]
    best, sources = lax.scan(step, start, (scores.swapaxes(0, 1)[1:], mask.T[1:]))  # sources [T - 1, B, N]
    last = (best + transitions.end).argmax(1)  # [B]

    def back(tag: jax.Array, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        before = jnp.take_along_axis(source, tag[:, None], 1)[:, 0]
        return before, before

    _, before = lax.scan(back, last, sources, reverse=True)  # [T - 1, B]
    tags = jnp.concatenate([before, last[None]]).T  # [B, T]
    return jnp.where(mask, tags, -1).astype(jnp.int32)


def allowed_transitions(labels: Sequence[str], encoding: Encoding) -> np.ndarray:
    """Returns which transitions an encoding allows, bool [N + 2, N + 2], from the row's tag to the column's.

    N is the start of a row of words and N + 1 its end.
    """
    parts = [label.partition("-")[::2] for label in [*labels, "START", "END"]]  # the prefix and the type of each
    allowed = np.zeros((len(parts), len(parts)), bool)
    for i, (before, kind) in enumerate(parts):
        for j, (after, other) in enumerate(parts):
            is_open = before in ("B", "I")
            if after in ("I", "L"):
                allowed[i, j] = is_open and kind == other
            else:  # in BIO, a span may end anywhere
                allowed[i, j] = encoding == "BIO" or not is_open
    allowed[-1] = allowed[:, -2] = allowed[-2, -1] = False  # nothing follows the end or precedes the start
    return allowed


def constrained(transitions: jax.Array, allowed: np.ndarray, forbidden: float = FORBIDDEN) -> Transitions:
    """Returns the transitions [N, N] for decoding: `forbidden` where `allowed_transitions` forbids them."""
    between, start, end = allowed[:-2, :-2], allowed[-2, :-2], allowed[:-2, -1]
    scores = ((between, transitions), (start, 0.0), (end, 0.0))
    return Transitions(*(jnp.where(mask, score, forbidden) for mask, score in scores))


def bio_transitions(labels: Sequence[str]) -> Transitions:
    """Returns scores for the rules of BIO alone: minus infinity if I-x does not follow B-x or I-x, otherwise zero."""
    for label in labels:
        if label != "O" and label[:2] not in ("B-", "I-"):
            raise UserError(f"tags: {label!r} is not a BIO tag; expected 'O', 'B-…' or 'I-…'")
    return constrained(jnp.zeros((len(labels), len(labels))), allowed_transitions(labels, "BIO"), -jnp.inf)


class CRF(nn.Module):
    """The `transitions` [N, N] of a CRF, for `log_likelihood` and, after `constrained`, for `viterbi_decode`."""

    tags: int  # N

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("transitions", nn.initializers.xavier_normal(), (self.tags, self.tags))
