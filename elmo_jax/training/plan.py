"""The plan of a training, which tells the loop in what one kind of training differs from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.program import Program
from elmo_jax.training.training_report import PretrainingReport, Report
from elmo_jax.types import Tree

# From the held-out perplexities so far, beginning with that before training, to whether training ends early.
StoppingRule = Callable[[Sequence[float]], bool]
# From the checkpoints of a finished run and its last step to the step to export.
SelectionRule = Callable[[Checkpoints, int], int]


def never(heldout: Sequence[float]) -> bool:
    """Implements `StoppingRule` for a training that always continues to the last step."""
    return False


@dataclasses.dataclass(frozen=True)
class Patience:
    """Implements `StoppingRule` for a training that ends when held-out perplexity no longer improves.

    The rule depends only on the recorded perplexities, and a restart keeps those up to its checkpoint. So a run that
    was killed ends at the same step as an uninterrupted one.

    Attributes:
      evaluations: the number of evaluations without improvement after which training ends; 0 means never.
    """

    evaluations: int

    def __call__(self, heldout: Sequence[float]) -> bool:
        """Returns whether none of the last `evaluations` perplexities is lower than the best one before them."""
        patience = self.evaluations
        return 0 < patience < len(heldout) and min(heldout[-patience:]) >= min(heldout[:-patience])


def last_step(checkpoints: Checkpoints, last: int) -> int:
    """Implements `SelectionRule` for a training that exports its last step."""
    return last


def best_heldout(checkpoints: Checkpoints, last: int) -> int:
    """Implements `SelectionRule` for a training that exports the step with the lowest held-out perplexity."""
    best = checkpoints.best_step()
    return last if best is None else best


@dataclasses.dataclass(frozen=True)
class TextEvaluator:
    """A further text on which perplexity is measured before training and, optionally, after it.

    Attributes:
      name: the name of the text in the metrics, as in `NAME/perplexity/forward`.
      before: the name of the perplexity before training in the progress.
      measure: a function from a program and the parameters of a training state to the perplexity.
      after: whether the perplexity of the exported parameters is measured as well.
    """

    name: str
    before: str
    measure: Callable[[Program, Tree], Perplexity]
    after: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of one kind of training; the default is pretraining.

    Attributes:
      params: the parameters of step 0, a whole tree in the layout of an export; None for random initial ones.
      frozen: the parts of the parameter tree that are not trained.
      stop: the rule that may end training before the last step.
      select: the rule that chooses the step to export.
      keeps_first: whether step 0 is saved, so that it can be exported if training does not improve on it.
      evaluators: the evaluators on further texts besides the held-out one.
      report: the report at the end.
      finetuned_from: the provenance of the model that `params` comes from.
    """

    params: Tree | None = None
    frozen: tuple[str, ...] = ()
    stop: StoppingRule = never
    select: SelectionRule = last_step
    keeps_first: bool = False
    evaluators: tuple[TextEvaluator, ...] = ()
    report: Report = PretrainingReport()
    finetuned_from: dict[str, Any] | None = None
