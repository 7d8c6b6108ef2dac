"""What a finished fine-tuning leaves to read: before and after, on the domain and on the original text."""

from __future__ import annotations

import textwrap
from typing import Any

from etils import epath

from elmo_jax.training.evaluate import FIGURES, Perplexity
from elmo_jax.training.report import draw_curve, ending

Figures = dict[str, float]
TEXTS = ("domain", "original")


def findings(
    before: dict[str, Figures | None], domain: Perplexity, original: Perplexity | None, vocabulary_size: int
) -> dict[str, Any]:
    """What `result.json` says of before and after.

    Args:
      before: perplexities of step 0 by their names in the metrics: `heldout`, `original`, `kept`.
      domain, original: of the exported parameters.
      vocabulary_size: words of the softmax, the same in all figures but `kept`.
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
    """What the numbers say, in words."""
    (before, after), (old, new) = ([found[when][text] for when in ("before", "after")] for text in TEXTS)
    sentences = [
        "A perplexity is the number of equally likely words that would leave the model as uncertain.",
        f"On the held-out text of the domain it {_change(before, after)}.",
        f"On the text that the model was trained on before, it {_change(old, new)}"
        + (": so much was forgotten." if new["average"] > old["average"] else ": nothing was forgotten.")
        if old
        else "What was forgotten of the text that the model was trained on before was not measured.",
        f"Before and after are over the same tokens, with the full softmax over the same {vocabulary_size:,} words;"
        " they compare with each other, and with no figure over another vocabulary.",
    ]
    if "before_over_kept_vocabulary" in found:
        kept = found["before_over_kept_vocabulary"]["domain"]["average"]
        sentences.append(
            f"Over the vocabulary before it was extended, the domain's perplexity before is {kept:,.1f}; that does not"
            " compare with the others, since all words that were added are one there, <UNK>."
        )
    return " ".join(sentences)


def _change(before: Figures, after: Figures) -> str:
    old, new = before["average"], after["average"]
    if new == old:
        return f"stayed at {old:,.1f}"
    if new < old:
        return f"fell from {old:,.1f} to {new:,.1f} (divided by {old / new:,.2f})"
    return f"rose from {old:,.1f} to {new:,.1f} (multiplied by {new / old:,.2f})"


def tuning_table(result: dict[str, Any], workdir: epath.Path) -> str:
    """The end of a fine-tuning for a person."""
    rows = [f"{'perplexity':<20} " + " ".join(f"{name:>12}" for name in (*FIGURES, "<UNK> targets"))]
    for text in TEXTS:
        for when in ("before", "after"):
            values, unknown = result[when][text], result["unknown_targets"][text]
            figures = " ".join(f"{values[key]:>12,.1f}" for key in FIGURES) if values else f"{'not measured':>12}"
            rows.append(f"{f'{text}, {when}':<20} {figures}" + (f" {unknown:>12.2%}" if values else ""))
    if result["stopped_early"]:
        rows += ["", f"stopped early at step {result['steps']:,}: held-out perplexity fell no more"]
    if result["exported_step"] != result["steps"]:
        rows += ["", f"exported, and in these figures: step {result['exported_step']:,}, the best on held-out text"]
    return "\n".join([*rows, "", *textwrap.wrap(result["meaning"], 100), "", *ending(result, workdir)])


def draw_tuning(
    workdir: epath.Path, records: list[dict[str, Any]], result: dict[str, Any], exported_tokens: int, sampled: bool
) -> None:
    """`curve.png`, with the original text before and after in it."""
    before, after = result["before"]["original"], result["after"]["original"]
    points = [(0, before["average"]), (exported_tokens, after["average"])] if before and after else []
    others = {"original text, average": points} if points else {}
    draw_curve(workdir, records, result["experiment"], sampled, others)
