"""Trains a biLM, from an empty folder or from where a run has stopped.

The state is that of the run's newest intact checkpoint; without one, it has the parameters of the plan, or else random
initial parameters. At a step boundary the order is: fetch the step's metrics and stop if they are not finite, save,
evaluate. The position of the rows in the text is part of the state, so a batch that was drawn ahead of a save is drawn
again after a restart. A signal ends an evaluation, which the next launch makes again; no value is measured twice.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax.checkpoints.export import export_bilm
from elmo_jax.checkpoints.from_run import first_step, provenance
from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.distributed.collectives import RequestReducer, StepRequests, allgather, broadcast_from_primary, is_primary
from elmo_jax.distributed.mesh import gather
from elmo_jax.errors import UserError
from elmo_jax.files import absolute
from elmo_jax.interrupts import Stopped, StopRequested, StopSignals
from elmo_jax.runs.activity import Tracer, Watchdog
from elmo_jax.runs.perplexity import WHOLE, Perplexity, of_directions
from elmo_jax.runs.result import Finished, best_effort, write_result
from elmo_jax.training.run_context import EvaluationWatch, RunContext, is_out_of_patience
from elmo_jax.training.setup import Measure, Recipe, TrainingSetup
from elmo_jax.training.step import Metrics, TrainState
from elmo_jax.training.throughput import Interval
from elmo_jax.training.training_report import TrainingResult, draw_curve, summary

_BLOCKS = "heldout/blocks"  # how many are evaluated, which stays the same when a run is made longer
_DESCRIPTIONS = {
    "heldout": "held-out perplexity",
    WHOLE: "perplexity of the whole held-out text",
    "kept": "held-out perplexity over the kept vocabulary",
}
_EXPORT_RATE = 2e8  # bytes per second, to estimate the time of the export


def train(setup: TrainingSetup, recipe: Recipe, workdir: epath.Path, title: str) -> Finished | Stopped:
    """Trains to the end, or until SIGTERM or SIGINT; see `pretrain`."""
    kept = setup.config.checkpoint
    with (
        RunContext(workdir, kept.keep, kept.keep_every, setup.config.train.trackers) as context,
        Watchdog(context.activity, setup.config.train.watchdog, workdir / "stacks"),
    ):
        restored = context.checkpoints.restore(setup.abstract_state())
        first = first_step(recipe.finetuned_from)
        accumulators = None if restored or recipe.accumulators is None else recipe.accumulators()
        state, step = restored or (setup.first_state(recipe.params, accumulators), first)
        context.open(step, total=first + setup.total_steps, done=step, first=first)
        return Trainer(setup, recipe, workdir, title, context).run(state, step)


class Trainer:
    """Trains a biLM in one launch of a run, which is a process from its start to its end."""

    def __init__(
        self, setup: TrainingSetup, recipe: Recipe, workdir: epath.Path, title: str, context: RunContext
    ) -> None:
        self._setup, self._recipe, self._workdir, self._title = setup, recipe, workdir, title
        self._context, self._checkpoints, self._activity = context, context.checkpoints, context.activity
        self._first = first_step(recipe.finetuned_from)
        self._config, self._total = setup.config, self._first + setup.total_steps
        self._agreed = StepRequests()  # what all processes do at the next step boundary
        self._saved = time.monotonic()  # when the newest save was begun, or the launch
        self._ended = False  # whether patience has ended training
        self._reducer = RequestReducer(setup.mesh)
        self._seconds_per_block = 0.0  # of the newest evaluation
        setup.heldout_blocks = broadcast_from_primary(int(context.log.latest(_BLOCKS, setup.heldout_blocks)))

    def run(self, state: TrainState, step: int) -> Finished | Stopped:
        self._last_saved = step
        self._export_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
        tracer = Tracer(self._workdir / "profile", self._config.train.profile)
        with StopSignals() as signals, tracer:
            self._watch = self._setup.watch = EvaluationWatch(self._context, self._reducer, signals)
            try:
                self._measure_before(state, step)
                if self._first < step < self._total and self._evaluates(step):
                    self._evaluate(state, step)  # unless a launch has done so
                with self._activity.during("steps"):
                    state, step = self._train(state, step, signals, tracer)
                if self._agreed.signal and step < self._total and not self._ended:
                    return self._context.save_and_stop(step, state, self._agreed.signal)
                with self._activity.during("checkpoints"):
                    result = self._finish(state, step)
            except StopRequested as request:
                self._checkpoints.wait()
                return Stopped(request.signal, self._last_saved)
        return Finished({}, already=False) if result is None else self._leave(result)

    def _measure_before(self, state: TrainState, step: int) -> None:
        """Measures the metrics before the first update, unless an earlier launch has written them."""
        first = state if step == self._first else None

        def first_params() -> Any:
            nonlocal first
            first = first or self._setup.first_state(self._recipe.params)
            return first.params

        heldout = self._perplexity("heldout", self._first, first_params)
        for text, measure in self._recipe.before.items():
            self._perplexity(text, self._first, first_params, measure)
        if self._recipe.exports == "best" and step == self._first:
            self._save(step, state, heldout.score(self._config.data.mixture))
        self._check_patience()

    def _perplexity(
        self,
        text: str,
        step: int,
        params: Callable[[], Any],
        measure: Measure = TrainingSetup.heldout,
        last_step: int | None = None,
    ) -> Perplexity:
        """Returns the perplexity of a text at a step; measures, writes and shows it unless a launch has done so.

        With `last_step`, that of the run, the parameters are those of the export, which may be of an earlier step.
        """
        if text == WHOLE and self._setup.heldout_blocks >= self._setup.whole_blocks:
            text = "heldout"  # which is all of it
        if known := self._context.log.evaluations.get((text, step)):
            return known
        if step == self._first:
            when = "before training"
        else:
            when = "after training" if self._ended or last_step or step == self._total else f"at step {step}"
        description = f"{_DESCRIPTIONS.get(text, f'perplexity of the {text} text')} {when}"
        now = params()
        self._watch.begin(description)
        with self._activity.during("evaluation"):
            perplexity = measure(self._setup, now)
        values: dict[str, Any] = perplexity.as_metrics(f"exported/{text}" if last_step else text)
        if text == "heldout":
            self._seconds_per_block = self._watch.seconds / self._setup.heldout_blocks
            values[_BLOCKS] = self._setup.heldout_blocks
        self._write(last_step or step, values)
        self._context.log.add_evaluation(text, step, perplexity)
        self._context.progress.say(f"{description}: {perplexity}")
        return perplexity

    def _train(self, state: TrainState, step: int, signals: StopSignals, tracer: Tracer) -> tuple[TrainState, int]:
        mapped = self._setup.mapped_step()
        batches = self._setup.batches(state, step - self._first)
        interval, compiled = Interval(self._setup.work), False
        # Metrics are fetched one step late, when the device already has its next step, so that it never waits.
        pending: tuple[int, Metrics, jax.Array | StepRequests] | None = None
        with jax.transfer_guard("disallow"):
            while step < self._total and not self._agreed.signal and not self._ended:
                tracer.before(step - self._first + 1)
                waiting = time.perf_counter()
                with self._activity.during("data"):
                    batch, words, interval.blocks_read = next(batches)
                interval.waited += time.perf_counter() - waiting
                interval.distinct_words += words
                with self._activity.during("steps" if compiled else "compilation"):
                    state, metrics = mapped(state, batch, self._setup.char_ids)
                compiled = True
                reduced = self._reducer.reduce(self._requests(interval, signals))
                step += 1
                tracer.after(step - self._first, metrics)
                self._context.progress.advance()
                if pending is not None:
                    self._receive(interval, *pending)
                pending = step, metrics, reduced
                if isinstance(reduced, StepRequests):  # a single process need not wait for the device to know them
                    self._agreed = reduced
                is_due = step == self._total or step % self._config.train.log_every == 0 or self._saves(step)
                if is_due or self._agreed.report or self._agreed.save:
                    self._receive(interval, *pending)
                    pending = None
                    self._report(interval, step, metrics)
                    if step < self._total and (self._saves(step) or self._agreed.save):
                        self._save(step, state)
                        if self._evaluates(step):
                            self._evaluate(state, step)
                    interval = Interval(self._setup.work)
                self._agreed = StepRequests(self._agreed.signal)
            if pending is not None:
                self._receive(interval, *pending)
            if interval.steps:  # training was stopped between two reports
                self._report(interval, step, metrics)
        return state, step

    def _requests(self, interval: Interval, signals: StopSignals) -> StepRequests:
        # Process 0 alone looks at its clock.
        minutes, seconds = self._config.checkpoint.minutes, self._config.train.log_seconds
        saves = is_primary() and 0 < 60 * minutes <= time.monotonic() - self._saved
        reports = is_primary() and 0 < seconds <= interval.seconds
        return StepRequests(signals.received or 0, saves, reports)

    def _saves(self, step: int) -> bool:
        saves = self._config.checkpoint
        return self._evaluates(step) or any(n and step % n == 0 for n in (saves.every, saves.keep_every))

    def _save(self, step: int, state: TrainState, heldout: float | None = None) -> None:
        self._context.log.flush()  # a run that resumes from this checkpoint needs all records up to it
        self._saved, self._last_saved = time.monotonic(), step
        with self._activity.during("checkpoints"):
            self._checkpoints.save(step, state, heldout)

    def _evaluates(self, step: int) -> bool:
        every = self._config.evaluation.every
        return bool(every) and (step - self._first) % every == 0

    def _evaluate(self, state: TrainState, step: int) -> None:
        heldout = self._perplexity("heldout", step, lambda: state.params)
        self._save(step, state, heldout.score(self._config.data.mixture))
        self._draw()
        self._check_patience()

    def _draw(self, result: TrainingResult | None = None) -> None:
        if is_primary():
            with best_effort(self._workdir / "curve.png"):
                draw_curve(self._workdir, self._context.log.records, bool(self._config.train.negatives), result)

    def _check_patience(self) -> None:
        # Process 0, which has the records, decides for all whether training ends early.
        evaluations, mixture = self._context.log.evaluations, self._config.data.mixture
        scores = [perplexity.score(mixture) for (text, _), perplexity in evaluations.items() if text == "heldout"]
        self._ended = bool(broadcast_from_primary(is_out_of_patience(scores, self._recipe.patience)))

    def _receive(self, interval: Interval, step: int, metrics: Metrics, reduced: jax.Array | StepRequests) -> None:
        """Fetches the metrics of a step, which must be finite, and what the processes had requested by then."""
        waiting = time.perf_counter()
        losses, norm, agreed = jax.device_get((metrics.loss, metrics.gradient_norm, reduced))
        self._agreed = StepRequests(*map(int, agreed))
        interval.blocked += time.perf_counter() - waiting
        if not (np.isfinite(losses).all() and np.isfinite(norm)):
            self._checkpoints.wait()
            kept = self._checkpoints.steps()
            good = f"the last checkpoint is that of step {kept[-1]}" if kept else "no checkpoint was written yet"
            last = int(self._context.log.latest("step"))
            raise UserError(
                f"{self._workdir}: the loss stopped being finite between steps {last} and {step}:"
                f" {of_directions(losses)}, gradient norm {norm}; {good}. Try a lower"
                " config.train.optimizer.learning_rate, more warmup_steps or a lower clip_norm, in another folder"
            )
        interval.losses.append(losses)

    def _report(self, interval: Interval, step: int, metrics: Metrics) -> None:
        of_processes = allgather(interval.of_process())
        values = interval.values(int(sum(of_processes.pop("processes/distinct_words")))) | {
            "train/gradient_norm": float(jax.device_get(metrics.gradient_norm)),
            "train/learning_rate": float(jax.device_get(metrics.learning_rate)),
            "train/seconds": self._context.log.latest("train/seconds") + interval.seconds,
            **of_processes,
        }
        self._write(step, values)
        losses = " ".join(f"{name} {values[f'train/loss/{name}']:.3f}" for name in self._config.model.directions)
        shown = f"{values['train/tokens_per_second']:,.0f} tokens/s · loss {losses}{self._context.last_save()}"
        self._context.progress.show(shown, step, self._seconds_left(step, interval.seconds / interval.steps))

    def _seconds_left(self, step: int, seconds_per_step: float) -> float:
        every, blocks = self._config.evaluation.every, self._setup.heldout_blocks
        total, made = self._setup.total_steps, step - self._first
        evaluations = 1 + ((total - 1) // every - made // every if every else 0)
        whole = self._setup.whole_blocks if self._setup.whole_blocks > blocks else 0
        seconds = self._seconds_per_block * (evaluations * blocks + whole)
        return (self._total - step) * seconds_per_step + seconds + self._export_bytes / _EXPORT_RATE

    def _write(self, step: int, values: dict[str, Any]) -> None:
        seconds = {f"seconds/{phase}": value for phase, value in self._activity.seconds().items()}
        tokens = (step - self._first) * self._config.train.tokens_per_step
        self._context.write(step, {"tokens": tokens, **values, **seconds})

    def _finish(self, state: TrainState, step: int) -> TrainingResult | None:
        """Saves and evaluates the last step, and measures the chosen one; returns the outcome on process 0."""
        self._save(step, state)
        self._ended = True
        self._evaluate(state, step)
        self._checkpoints.wait()
        best = self._checkpoints.best_step() if self._recipe.exports == "best" and is_primary() else None
        chosen = broadcast_from_primary(step if best is None else best)
        if chosen != step:
            state = self._checkpoints.restore_step(chosen, self._setup.abstract_state())
            self._context.progress.say(f"exported: step {chosen}, the best on held-out text")
        for text, measure in self._recipe.after.items():
            self._perplexity(text, chosen, lambda: state.params, measure, last_step=step)
        params = deinterleave(gather(state.params), self._setup.corpus.vocabulary_size)
        if not is_primary():
            return None
        return TrainingResult(
            title=self._title,
            records=self._context.log.records,
            evaluations=self._context.log.evaluations,
            first_step=self._first,
            last_step=step,
            total_steps=self._total,
            exported_step=chosen,
            params=params,
            precision=self._config.train.precision,
            tokens_per_step=self._config.train.tokens_per_step,
        )

    def _leave(self, result: TrainingResult) -> Finished:
        mesh, corpus = self._setup.mesh, self._setup.corpus
        self._context.progress.say("saved; writing the export")
        self._activity.enter("checkpoints")
        heldout, step = result.after("heldout"), result.exported_step
        info = provenance(
            absolute(self._workdir).name, step, heldout, self._config, corpus, self._recipe.finetuned_from
        )
        export_bilm(self._workdir / "export", self._config.model, result.params, corpus.vocabulary(), info)
        entries = {
            **summary(result),
            **self._recipe.further_results(result),
            "wall_seconds": self._context.wall_seconds,
            "seconds": self._activity.seconds(),
            "devices": f"{mesh.size} × {mesh.devices.flat[0].device_kind}",
        }
        write_result(self._workdir, entries)  # must be after the export, since it marks the run as complete
        self._draw(result)
        return Finished(entries, already=False)
