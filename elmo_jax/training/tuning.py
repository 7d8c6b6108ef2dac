"""The run that fine-tunes: it starts from a model, is measured on two texts, and ends when nothing more is gained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from elmo_jax.config import PADDING, Config
from elmo_jax.data.batches import DistinctWords
from elmo_jax.training import mesh as meshes
from elmo_jax.training.evaluate import FIGURES, Evaluator, Perplexity
from elmo_jax.training.lanes import to_lanes
from elmo_jax.training.loop import Chosen, Run
from elmo_jax.training.state import TrainState
from elmo_jax.training.together import is_first, of_each, of_first
from elmo_jax.training.tuning_report import draw_tuning, findings
from elmo_jax.training.vocabulary import OtherText

Tree = dict[str, Any]

# `finetune.trainable` -> the parts of the parameter tree that are not trained
FROZEN: dict[str, tuple[str, ...]] = {
    "all": (),
    "all_but_token_encoder": ("token_encoder",),
    "softmax": ("token_encoder", "forward", "backward"),
}


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A model to fine-tune.

    Attributes:
      params: its parameters, with a softmax over the vocabulary of the run's corpus.
      finetuned_from: what is known of it, for the history of what comes of it.
      original: held-out text of what it was trained on; None where that is not at hand.
      kept: its own parameters, where its vocabulary was extended.
    """

    params: Tree
    finetuned_from: dict[str, Any]
    original: OtherText | None = None
    kept: Tree | None = None


class TuningRun(Run):
    """One launch of a run that fine-tunes.

    Its step 0 is a checkpoint too: the model as it came is exported where training never made it better.
    """

    def __init__(self, tuning: Tuning, config: Config, *others: Any) -> None:
        """All but `tuning` are the arguments of `Run`, in their order."""
        self._frozen = FROZEN[config.finetune.trainable]
        super().__init__(config, *others)
        self._tuning = tuning
        self._predecessor = tuning.finetuned_from
        self._ended = False  # whether patience has

    def _first_state(self) -> TrainState:
        return self._start_from(self._tuning.params)

    def _before(self, state: TrainState, step: int) -> None:
        super()._before(state, step)
        tuning = self._tuning
        if tuning.original is not None and self._lacks("original/perplexity/average"):
            found = self._of_original((state if step == 0 else self._first_state()).params)
            self._note("original", "perplexity of the original text before training", found)
        if tuning.kept is not None and self._lacks("kept/perplexity/average"):
            self._note("kept", "held-out perplexity before, over the kept vocabulary", self._of_kept(tuning.kept))
        if step == 0:
            name = "heldout/perplexity/average"
            heldout = of_each({name: self._log.latest(name)})[name][0]  # process 0 keeps the records
            self._checkpoints.save(0, state, heldout)
        self._note_end()

    def _of_original(self, params: Tree) -> Perplexity:
        text = self._tuning.original
        assert text is not None
        spellings = meshes.to_devices(text.spellings, meshes.EVERYWHERE, self._mesh)
        return self._evaluator.perplexity(params, text.blocks, DistinctWords(text.spellings, PADDING), spellings)

    def _of_kept(self, params: Tree) -> Perplexity:
        """Of the domain's held-out text, with the softmax as it was before it was extended."""
        size = len(params["softmax"]["bias"])
        placement = meshes.softmax_placement(self._config, size, self._mesh)
        evaluator = Evaluator(self._model, self._config.evaluation, self._mesh, size, placement)
        params = to_lanes(params)
        params = meshes.divided(params, meshes.params_specs(params, placement), self._mesh)
        return evaluator.perplexity(params, self._corpus.blocks("heldout"), self._distinct, self._spellings)

    def _note(self, name: str, what: str, found: Perplexity) -> None:
        """Writes and shows a figure of step 0."""
        self._write(0, {f"{name}/perplexity/{key}": value for key, value in found.as_dict().items()})
        self._progress.say(
            f"{what}: forward {found.forward:,.1f} · backward {found.backward:,.1f} · average {found.average:,.1f}"
        )

    def _heldout(self) -> list[float]:
        name = "heldout/perplexity/average"
        return [record[name] for record in self._log.records if name in record]

    def _evaluate(self, state: TrainState, step: int, when: str) -> Perplexity:
        found = super()._evaluate(state, step, when)
        self._note_end()
        return found

    def _note_end(self) -> None:
        """Whether patience has ended, as the records of process 0 say."""
        self._ended = bool(of_first(is_enough(self._heldout(), self._config.finetune.patience)))

    def _is_enough(self) -> bool:
        return self._ended

    def _choose(self, last: Chosen) -> Chosen:
        found_best = self._checkpoints.best_step()
        best = of_first(last.step if found_best is None else found_best)
        if best == last.step:
            return last
        state = self._checkpoints.restore_step(best, self._abstract_state())
        blocks = self._corpus.blocks("heldout")
        found = self._evaluator.perplexity(state.params, blocks, self._distinct, self._spellings)
        self._progress.say(f"exported: step {best}, the best on held-out text")
        return Chosen(state, best, found)

    def _more_findings(self, chosen: Chosen, step: int) -> dict[str, Any]:
        original = None if self._tuning.original is None else self._of_original(chosen.state.params)
        if not is_first():  # which alone has the figures from before
            return {}
        before = {name: self._figures(name) for name in ("heldout", "original", "kept")}
        found = findings(before, chosen.heldout, original, len(self._corpus.vocabulary()))
        return {
            "exported_step": chosen.step,
            "stopped_early": step < self._total,
            **found,
            "trained": self._config.finetune.trainable,
            "finetuned_from": self._tuning.finetuned_from,
        }

    def _figures(self, name: str) -> dict[str, float] | None:
        """Perplexities of step 0, as the log has them."""
        record = self._log.first(f"{name}/perplexity/average")
        return None if record is None else {key: record[f"{name}/perplexity/{key}"] for key in FIGURES}

    def _draw(self, result: dict[str, Any]) -> None:
        tokens = result["exported_step"] * self._step_tokens
        draw_tuning(self._workdir, self._log.records, result, tokens, bool(self._config.train.negatives))


def is_enough(heldout: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` held-out perplexities are all no lower than the best before them; 0: never."""
    return 0 < patience < len(heldout) and min(heldout[-patience:]) >= min(heldout[:-patience])
