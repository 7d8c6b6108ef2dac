"""Tests when fine-tuning ends, which parameters it freezes, and its report."""

import json

import jax
import numpy as np
import pytest

from elmo_jax.config import Config
from elmo_jax.finetuning.recipe import FROZEN, results, table
from elmo_jax.runs.activity import PHASES
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.training.partitioning import map_step
from elmo_jax.training.run_context import is_out_of_patience
from elmo_jax.training.state import initial_state
from elmo_jax.training.step import TrainStep
from elmo_jax.training.training_report import TrainingResult, draw_curve
from tests.training.helpers import VOCABULARY, SmallTraining, small_config

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("heldout", "patience", "enough"),
    [
        ([], 2, False),
        ([9.0], 1, False),
        ([9.0, 9.5], 1, True),
        ([9.0, 8.0], 1, False),
        ([9.0, 8.0, 8.5], 2, False),
        ([9.0, 8.0, 8.5, 8.2], 2, True),
        ([9.0, 8.0, 8.5, 7.9], 2, False),
        ([9.0, 8.0, 8.0, 8.0], 2, True),  # a perplexity that is not lower is not better
        ([8.0, 9.0, 9.0, 9.0], 0, False),
        ([8.0, 9.0, float("inf"), 9.0], 3, True),
        # those of tasks are dev metrics times -1, in which an equal one is not better either (AllenNLP)
        ([-5.0, -5.0], 2, False),
        ([-5.0, -5.0, -4.0], 2, True),
        ([-5.0, -4.0, -6.0, -5.0], 2, False),
    ],
)
def test_patience(heldout, patience, enough):
    assert is_out_of_patience(heldout, patience) is enough


@pytest.mark.parametrize("trainable", ["all_but_token_encoder", "softmax"])
def test_what_is_frozen_stays_bit_equal_and_has_no_optimizer_state(trainable):
    frozen = FROZEN[trainable]
    training = SmallTraining(small_config(), devices=1)
    step = TrainStep(training.step.model, training.config.train, 20, VOCABULARY, frozen)
    state = initial_state(training.config, training.model, step.optimizer, frozen=frozen)
    training.step, training.state = step, state
    training.program = map_step(step, state, training.mesh)
    before = jax.device_get(state.params)
    after, metrics = training.run(2)
    for part in ("token_encoder", "forward", "backward", "softmax"):
        same = [
            np.asarray(a).tobytes() == np.asarray(b).tobytes()
            for a, b in zip(jax.tree.leaves(before[part]), jax.tree.leaves(after.params[part]), strict=True)
        ]
        assert all(same) if part in frozen else not any(same), part
    sums = [leaf for leaf in jax.tree.leaves(after.dense_optimizer) if leaf.ndim]
    trained = {name: tree for name, tree in before.items() if name not in ("softmax", *frozen)}
    assert sorted(leaf.shape for leaf in sums) == sorted(leaf.shape for leaf in jax.tree.leaves(trained))
    assert all(np.isfinite(m.loss).all() for m in metrics)


def test_choices_of_the_config_are_those_there_are():
    assert Config().finetune.trainable in FROZEN and set(FROZEN) == {"all", "all_but_token_encoder", "softmax"}


BEFORE = Perplexity(100.0, 81.0, 1000, 0.05)
AFTER = Perplexity(49.0, 36.0, 1000, 0.05)
OTHER = Perplexity(144.0, 100.0, 500, 0.01)


def training_result(original=OTHER, kept=None):
    evaluations = {("heldout", 0): BEFORE, ("heldout", 20): AFTER, ("heldout", 30): OTHER}
    if original:
        evaluations |= {("original", 0): BEFORE, ("original", 20): original}
    if kept:
        evaluations["kept", 0] = kept
    params = {"softmax": {"bias": np.zeros(1234)}}
    records = [
        {"step": step, "tokens": 100 * step, **item.as_metrics(text)} for (text, step), item in evaluations.items()
    ]
    return TrainingResult("legal", records, evaluations, 30, 40, 20, params, "float32", tokens_per_step=100)


def result(**texts):
    return {
        "experiment": "legal",
        "steps": 30,
        "tokens_seen": 3000,
        "tokens_per_second": 100.0,
        "wall_seconds": 61.0,
        "seconds": dict.fromkeys(PHASES, 61.0 / 7),
        "parameters": 1000,
        "softmax_parameters": 200,
        **results(training_result(**texts), "all", {"fingerprint": "0" * 64}),
    }


def test_findings():
    actual = json.loads(json.dumps(result()))
    for when in ("before", "after"):
        for text in ("domain", "original"):
            assert actual[when][text].keys() == {"forward", "backward", "average"}
    assert actual["after"]["domain"]["average"] == 42.0 and actual["after"]["original"]["average"] == 120.0
    assert actual["unknown_targets"] == {"domain": 0.05, "original": 0.01}
    assert "before_over_kept_vocabulary" not in actual


def test_findings_without_the_original_text():
    actual = result(original=None)
    assert actual["before"]["original"] is None and actual["after"]["original"] is None
    assert actual["unknown_targets"]["original"] is None


def test_the_figure_of_another_vocabulary_has_its_own_entry():
    actual = result(kept=Perplexity(7.5, None, 1000, 0.06))
    assert actual["before_over_kept_vocabulary"]["domain"]["average"] == 7.5
    assert actual["before"]["domain"]["average"] == 90.0


def test_table_and_plot(tmp_path):
    for number, original in enumerate((OTHER, None)):
        lines = table(result(original=original), tmp_path).splitlines()
        assert lines[1].split() == ["domain,", "before", "100.0", "81.0", "90.0", "5.00%"]
        assert lines[2].split() == ["domain,", "after", "49.0", "36.0", "42.0", "5.00%"]
        assert ("not measured" in lines[3]) == bool(number)
        text = "\n".join(lines)
        assert (
            "stopped early at step 30" in text
            and "step 20, the best" in text
            and "\n(full softmax over the same words before and after; original: what the model was trained on" in text
        )
        actual = results(training_result(original), "all", {"fingerprint": "0" * 64})
        assert actual["stopped_early"] and actual["after"]["domain"] == AFTER.as_dict()
        draw_curve(tmp_path, training_result(original).records, True, training_result(original))
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
