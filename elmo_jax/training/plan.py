"""`Plan`: what differs between kinds of training."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.program import Program
from elmo_jax.training.training_report import Outcome
from elmo_jax.types import Tree


@dataclasses.dataclass(frozen=True)
class TextEvaluator:
    """A further text on which perplexity is measured before training and, optionally, after it."""

    name: str  # the name of the text in the metrics, as in `NAME/perplexity/forward`
    before: str  # the name of the perplexity before training in the progress
    # a function from a program and the parameters of a training state to the perplexity
    measure: Callable[[Program, Tree], Perplexity]
    after: bool  # whether the perplexity of the exported parameters is measured as well


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of one kind of training; the default is pretraining."""

    # the parameters before the first update, a whole tree in the layout of an export; None for random initial ones
    params: Tree | None = None
    # reads Adagrad's accumulators that training continues with, a tree like `params`; None for new ones
    accumulators: Callable[[], Tree] | None = None
    frozen: tuple[str, ...] = ()  # the parts of the parameter tree that are not trained
    patience: int = 0  # the number of evaluations without a lower held-out perplexity that ends training; 0 means never
    # "last" for the last step, or "best" for the one of the lowest held-out perplexity, which may be step 0
    exports: Literal["last", "best"] = "last"
    evaluators: tuple[TextEvaluator, ...] = ()  # the evaluators on texts other than the held-out one
    # returns the entries of `result.json` in addition to those of `training_report.summary`
    further_results: Callable[[Outcome], dict[str, Any]] = lambda outcome: {}
    compares: bool = False  # whether the perplexity of the whole held-out text is measured before training too
    finetuned_from: dict[str, Any] | None = None  # the provenance of the model that `params` comes from
