"""Makes the plans of fine-tuning, from which the training loop is run, and reports perplexities before and after."""

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np
from etils import epath

from elmo_jax.checkpoints.bilm_tf import Checkpoint
from elmo_jax.config import Config
from elmo_jax.data.corpus import Corpus
from elmo_jax.data.windows import spread_blocks
from elmo_jax.finetuning.softmax_init import extended_softmax, heldout_under
from elmo_jax.finetuning.source import SourceModel
from elmo_jax.runs.perplexity import WHOLE
from elmo_jax.training.setup import Measure, Recipe, measure_whole
from elmo_jax.training.training_report import TrainingResult, ending, rows_of_sources
from elmo_jax.types import Tree

# The parts of the parameter tree that are not trained, for each value of `finetune.trainable`.
FROZEN: dict[str, tuple[str, ...]] = {
    "all": (),
    "all_but_token_encoder": ("token_encoder",),
    "softmax": ("token_encoder", "forward", "backward"),
}


def recipe_for_corpus(source: SourceModel, config: Config, corpus: Corpus, original: Corpus | None) -> Recipe:
    """Returns the plan for the softmax over the corpus's vocabulary, with the texts to measure before and after.

    The perplexity of the original text is measured if there is one. If the vocabulary is extended, the perplexity
    before training is also measured over the vocabulary that the model came with.
    """
    params, words = source.bilm.params, corpus.vocabulary()
    assert source.bilm.vocabulary is not None
    before: dict[str, Measure] = {WHOLE: measure_whole}
    if original is not None:
        text, char_ids = heldout_under(original, words, source.bilm.config.char_cnn.max_characters)
        blocks = spread_blocks(text, config.evaluation.tokens)
        before["original"] = lambda setup, params: setup.perplexity(params, blocks, char_ids)
    after = dict(before)
    size = len(source.bilm.vocabulary)
    if len(words) > size:
        kept = params
        params = {**params, "softmax": extended_softmax(params["softmax"], corpus.counts(), len(words))}
        before["kept"] = lambda setup, _: setup.heldout_with_vocabulary(kept, size)
    return dataclasses.replace(recipe_of(config, params, source.history), before=before, after=after)


def continued(recipe: Recipe, checkpoint: Checkpoint, config: Config) -> tuple[Recipe, str]:
    """Returns the plan that continues with the accumulators of a checkpoint of bilm-tf, and how the optimizer starts.

    Rows that are added to its softmax have new accumulators, and with Adam or `finetune.optimizer` all are new.
    """
    name, initial = config.train.optimizer.name, config.train.optimizer.initial_accumulator
    reasons = {
        "the checkpoint has none": not checkpoint.has_accumulators,
        f"config.train.optimizer.name is {name}": name != "adagrad",
        "config.finetune.optimizer is fresh": config.finetune.optimizer == "fresh",
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    start = f"new accumulators, since {why}" if why else "Adagrad continues with the accumulators of the checkpoint"

    def read() -> Tree:
        sums, words = checkpoint.accumulators(config.model), len((recipe.params or {})["softmax"]["bias"])
        added = ((0, words - len(sums["softmax"]["bias"])), (0, 0))
        rows = jax.tree.map(lambda s: np.pad(s, added[: s.ndim], constant_values=initial), sums["softmax"])
        return {**sums, "softmax": rows}

    results = recipe.further_results
    recipe = dataclasses.replace(recipe, further_results=lambda result: {**results(result), "optimizer": start})
    return (recipe if why else dataclasses.replace(recipe, accumulators=read)), start


def recipe_of(config: Config, params: Tree, finetuned_from: dict[str, Any]) -> Recipe:
    """Returns the plan of a fine-tuning of the whole tree `params`, in the layout of an export, of some provenance."""
    return Recipe(
        params=params,
        frozen=FROZEN[config.finetune.trainable],
        patience=config.finetune.patience,
        exports="best",
        further_results=partial(results, trainable=config.finetune.trainable, finetuned_from=finetuned_from),
        finetuned_from=finetuned_from,
    )


TEXTS = {"domain": "heldout", "original": "original"}  # the names of the texts in the report and in the evaluations


def results(result: TrainingResult, trainable: str, finetuned_from: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries that a fine-tuning adds to `result.json`: perplexities before and after, and its source."""
    before = {name: result.before(text) for name, text in TEXTS.items()}
    after = {name: result.after(text) for name, text in TEXTS.items()}
    kept = result.before("kept")
    return {
        "exported_step": result.exported_step,
        "stopped_early": result.last_step < result.total_steps,
        "before": {name: perplexity and perplexity.as_dict() for name, perplexity in before.items()},
        "after": {name: perplexity and perplexity.as_dict() for name, perplexity in after.items()},
        "unknown_targets": {name: perplexity and perplexity.unknown for name, perplexity in after.items()},
        **({"before_over_kept_vocabulary": {"domain": kept.as_dict()}} if kept else {}),
        "trained": trainable,
        "finetuned_from": finetuned_from,
    }


def table(result: dict[str, Any], workdir: epath.Path) -> str:
    """Returns the report of a fine-tuning as text."""
    rows = [f"{'perplexity':<20} " + " ".join(f"{name:>12}" for name in (*result["after"]["domain"], "<UNK> targets"))]
    for text in TEXTS:
        for when in ("before", "after"):
            values, unknown = result[when][text], result["unknown_targets"][text]
            numbers = " ".join(f"{value:>12,.1f}" for value in values.values()) if values else f"{'not measured':>12}"
            rows.append(f"{f'{text}, {when}':<20} {numbers}" + (f" {unknown:>12.2%}" if values else ""))
        rows += rows_of_sources(result) if text == "domain" else []
    rows.append("(full softmax over the same words before and after; original: what the model was trained on before)")
    if "optimizer" in result:
        rows += ["", f"optimizer: {result['optimizer']}"]
    if result["stopped_early"]:
        rows += ["", f"stopped early at step {result['steps']:,}: held-out perplexity no longer fell"]
    if result["exported_step"] != result["steps"]:
        rows += ["", f"exported and measured above: step {result['exported_step']:,}, the best on held-out text"]
    return "\n".join([*rows, "", *ending(result, workdir)])
