"""What sets one kind of training apart from another, and is handed to the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.program import Program
from elmo_jax.training.report import PretrainingReport, Report
from elmo_jax.types import Tree

# The held-out perplexities so far, that before training first -> whether to end before the last step.
StoppingRule = Callable[[Sequence[float]], bool]
# The checkpoints of a finished run, and its last step -> the step to export.
SelectionRule = Callable[[Checkpoints, int], int]


def never(heldout: Sequence[float]) -> bool:
    """The `StoppingRule` that trains to the last step."""
    return False


@dataclasses.dataclass(frozen=True)
class Patience:
    """The `StoppingRule` that ends a training which gains nothing more.

    It depends on the recorded perplexities alone, which a restart keeps up to its checkpoint: so a run that was killed
    stops where an uninterrupted one does.
    """

    evaluations: int  # 0: never

    def __call__(self, heldout: Sequence[float]) -> bool:
        """Whether the last so many perplexities are all no lower than the best before them."""
        patience = self.evaluations
        return 0 < patience < len(heldout) and min(heldout[-patience:]) >= min(heldout[:-patience])


def last_step(checkpoints: Checkpoints, last: int) -> int:
    """The `SelectionRule` that exports the last step."""
    return last


def best_heldout(checkpoints: Checkpoints, last: int) -> int:
    """The `SelectionRule` that exports the step with the lowest held-out perplexity."""
    best = checkpoints.best_step()
    return last if best is None else best


@dataclasses.dataclass(frozen=True)
class TextEvaluator:
    """A text beside the held-out one, on which perplexity is measured before training and, perhaps, after it.

    Attributes:
      name: in the metrics, `NAME/perplexity/forward` and so on.
      before: what the perplexity before training is called in the progress.
      measure: a program and parameters, as they stand in a state -> the perplexity.
      after: whether it is measured on the exported parameters too.
    """

    name: str
    before: str
    measure: Callable[[Program, Tree], Perplexity]
    after: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """One kind of training; the default is pretraining.

    Attributes:
      params: the parameters of step 0, a whole tree as an export holds it; None for fresh ones.
      frozen: parts of the parameter tree that are not trained.
      stop: whether to end before the last step.
      select: which step to export.
      keeps_first: whether step 0 is a checkpoint, so that it can be exported where training never made it better.
      evaluators: of texts beside the held-out one.
      report: what is told at the end.
      finetuned_from: what is known of the model that `params` are of.
    """

    params: Tree | None = None
    frozen: tuple[str, ...] = ()
    stop: StoppingRule = never
    select: SelectionRule = last_step
    keeps_first: bool = False
    evaluators: tuple[TextEvaluator, ...] = ()
    report: Report = PretrainingReport()
    finetuned_from: dict[str, Any] | None = None
