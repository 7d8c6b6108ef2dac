"""The report of a finished fine-tuning: perplexities before and after, on the domain and on the original text."""

from typing import Any

from etils import epath

from elmo_jax.training.training_report import TrainingResult, ending, rows_of_sources

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
