"""The report of a finished fine-tuning: perplexities before and after, on the domain and on the original text."""

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
        ),
        "trained": trainable,
        "finetuned_from": finetuned_from,
    }


def findings(before: dict[str, Values | None], domain: Perplexity, original: Perplexity | None) -> dict[str, Any]:
    """Returns the entries of `result.json` about perplexities before and after.

    Args:
      before: the perplexities of step 0 by their names in the metrics: `heldout`, `original`, `kept`.
      domain: the held-out perplexity of the exported parameters.
      original: their perplexity on the original text, if it was measured.
    """
    found: dict[str, Any] = {
        "before": {"domain": before["heldout"], "original": before["original"]},
        "after": {"domain": domain.as_dict(), "original": original and original.as_dict()},
        "unknown_targets": {"domain": domain.unknown, "original": original and original.unknown},
    }
    if before["kept"] is not None:
        found["before_over_kept_vocabulary"] = {"domain": before["kept"]}
    return found


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
