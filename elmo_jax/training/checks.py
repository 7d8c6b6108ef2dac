"""Checks whether a config, a corpus and the devices fit together, and computes the number of steps."""

import math

import jax

from elmo_jax.config import Config
from elmo_jax.data.batches import epoch_tokens
from elmo_jax.data.corpus import Corpus
from elmo_jax.distributed.mesh import check_rows
from elmo_jax.errors import UserError
from elmo_jax.settings import LARGEST_INTEGER
from elmo_jax.training.partitioning import softmax_placement


def check_sizes(config: Config, corpus: Corpus, mesh: jax.sharding.Mesh) -> None:
    """Raises `UserError` for sizes with which training is impossible."""
    train = config.train
    check_rows(train.batch_size, mesh, train.accumulate)
    softmax_placement(config, corpus.vocabulary_size, mesh)  # raises if the mesh does not allow it
    check_negatives(config, corpus.vocabulary_size)
    tokens, needed = epoch_tokens(corpus, config.data.mixture), train.tokens_per_step
    if tokens < needed:
        raise UserError(
            f"{corpus.path}: {tokens} training tokens are fewer than one batch of {train.batch_size} rows ×"
            f" {train.unroll_steps} steps = {needed}; give more text, or lower config.train.batch_size"
        )
    if not corpus.tokens("heldout"):
        raise UserError(
            f"{corpus.path}: has no held-out text; prepare it with --heldout-fraction above 0, or --heldout"
        )


def check_negatives(config: Config, vocabulary_size: int) -> None:
    """Raises `UserError` if a vocabulary has too few words to draw the negatives of a step from."""
    if config.train.negatives >= vocabulary_size:
        raise UserError(
            f"config.train.negatives: {config.train.negatives} distinct negatives cannot be drawn from a vocabulary of"
            f" {vocabulary_size} words; use fewer, or 0 for the full softmax"
        )


def warmup_warning(config: Config, total: int) -> str | None:
    """Returns a warning if the warmup has no effect, or is not over at the end of a run of `total` steps, or None."""
    optimizer = config.train.optimizer
    if optimizer.schedule == "constant" and optimizer.warmup_steps:
        return (
            f"config.train.optimizer.warmup_steps: {optimizer.warmup_steps:,} has no effect, since"
            " config.train.optimizer.schedule is constant; set that to warmup_cosine"
        )
    if optimizer.schedule == "constant" or not total or optimizer.warmup_steps < total:
        return None
    return (
        f"config.train.optimizer.warmup_steps: {optimizer.warmup_steps:,} steps of warmup are not fewer than the"
        f" {total:,} steps of the run, in which the learning rates reach {total / optimizer.warmup_steps:.1%} of their"
        " peak; use fewer"
    )


def total_steps(config: Config, corpus: Corpus) -> int:
    """Returns `train.steps`, or else the number of steps of `train.epochs` epochs.

    Raises:
      UserError: these are more steps than are counted, or some of those to trace are not among them.
    """
    steps = config.train.epochs * epoch_tokens(corpus, config.data.mixture) / config.train.tokens_per_step
    if not config.train.steps and steps > LARGEST_INTEGER:
        raise UserError(
            f"config.train.epochs: {config.train.epochs:g} epochs are {steps:.3g} steps; at most {LARGEST_INTEGER:,}"
        )
    total, profile = config.train.steps or math.ceil(steps), config.train.profile
    if profile and (len(profile) != 2 or sum(profile) - 1 > total):
        raise UserError(
            f"config.train.profile: expected the first step and the number of steps, within the {total:,} steps of the"
            f" run, got {profile}"
        )
    return total
