"""The report of a finished fine-tuning: perplexities before and after, on the domain and on the original text."""

import textwrap
from typing import Any

from etils import epath

from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.training_report import Outcome, before_training, ending, rows_of_sources

Values = dict[str, float]  # the perplexities of one text by their names
TEXTS = ("domain", "original")


def results(outcome: Outcome, trainable: str, finetuned_from: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries that a fine-tuning adds to `result.json`: perplexities before and after, and its source."""
    return {
        "exported_step": outcome.exported_step,
        "stopped_early": outcome.last_step < outcome.total_steps,
        **findings(
            {text: before_training(outcome.records, text) for text in ("heldout", "original", "kept")},
            outcome.heldout,
            outcome.others.get("original"),
            len(outcome.params["softmax"]["bias"]),
        ),
        "trained": trainable,
        "finetuned_from": finetuned_from,
    }


def findings(
    before: dict[str, Values | None], domain: Perplexity, original: Perplexity | None, vocabulary_size: int
) -> dict[str, Any]:
    """Returns the entries of `result.json` about perplexities before and after.

    Args:
      before: the perplexities of step 0 by their names in the metrics: `heldout`, `original`, `kept`.
      domain: the held-out perplexity of the exported parameters.
      original: their perplexity on the original text, if it was measured.
      vocabulary_size: the number of words of the softmax for all perplexities except `kept`.
    """
    found: dict[str, Any] = {
        "before": {"domain": before["heldout"], "original": before["original"]},
        "after": {"domain": domain.as_dict(), "original": original and original.as_dict()},
        "unknown_targets": {"domain": domain.unknown, "original": original and original.unknown},
    }
    if before["kept"] is not None:
        found["before_over_kept_vocabulary"] = {"domain": before["kept"]}
    return {**found, "meaning": _meaning(found, vocabulary_size)}


def _meaning(found: dict[str, Any], vocabulary_size: int) -> str:
    (before, after), (old, new) = ([found[when][text] for when in ("before", "after")] for text in TEXTS)
    sentences = [
        "A perplexity is the number of equally likely words that would leave the model as uncertain.",
        f"On the held-out text of the domain it {_change(before, after)}.",
        f"On the text that the model was trained on before, it {_change(old, new)}"
        + (": the rise is what was forgotten." if new["average"] > old["average"] else ": nothing was forgotten.")
        if old
        else "What was forgotten of the text that the model was trained on before was not measured.",
        f"Before and after are over the same tokens, with the full softmax over the same {vocabulary_size:,} words;"
        " they are comparable with each other, but not with perplexities over another vocabulary.",
    ]
    if "before_over_kept_vocabulary" in found:
        kept = found["before_over_kept_vocabulary"]["domain"]["average"]
        sentences.append(
            f"Over the vocabulary before it was extended, the domain's perplexity before is {kept:,.1f}; that does not"
            " compare with the others, since all words that were added are one there, <UNK>."
        )
    return " ".join(sentences)


def _change(before: Values, after: Values) -> str:
    old, new = before["average"], after["average"]
    if new == old:
        return f"stayed at {old:,.1f}"
    if new < old:
        return f"fell from {old:,.1f} to {new:,.1f} (divided by {old / new:,.2f})"
    return f"rose from {old:,.1f} to {new:,.1f} (multiplied by {new / old:,.2f})"


def table(result: dict[str, Any], workdir: epath.Path) -> str:
    """Returns the report of a fine-tuning as text."""
    rows = [f"{'perplexity':<20} " + " ".join(f"{name:>12}" for name in (*result["after"]["domain"], "<UNK> targets"))]
    for text in TEXTS:
        for when in ("before", "after"):
            values, unknown = result[when][text], result["unknown_targets"][text]
            numbers = " ".join(f"{value:>12,.1f}" for value in values.values()) if values else f"{'not measured':>12}"
            rows.append(f"{f'{text}, {when}':<20} {numbers}" + (f" {unknown:>12.2%}" if values else ""))
        rows += rows_of_sources(result) if text == "domain" else []
    if result["stopped_early"]:
        rows += ["", f"stopped early at step {result['steps']:,}: held-out perplexity no longer fell"]
    if result["exported_step"] != result["steps"]:
        rows += ["", f"exported and measured above: step {result['exported_step']:,}, the best on held-out text"]
    return "\n".join([*rows, "", *textwrap.wrap(result["meaning"], 100), "", *ending(result, workdir)])
