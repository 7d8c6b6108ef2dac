"""Tests the table and the plot of a finished run."""

from dataclasses import replace

import pytest
from etils import epath

from elmo_jax.config import Config, ModelConfig
from elmo_jax.runs.metrics import MetricsLog, read_records
from elmo_jax.runs.perplexity import Perplexity
from elmo_jax.runs.result import read_result, thousands, write_result
from elmo_jax.training.throughput import affordable_evaluation, flops_per_token, flops_per_word
from elmo_jax.training.training_report import TrainingResult, draw_curve, summary, table
from tests.training.helpers import SmallTraining, small_config


def records():
    heldout = {f"heldout/perplexity/{name}": 900.0 for name in ("forward", "backward", "average")}
    trained = [
        {"step": n, "tokens": 100 * n, "train/seconds": 5.0 + n, "train/loss/forward": 3.0, "train/loss/backward": 3.1}
        for n in (10, 20, 30)
    ]
    return [{"step": 0, "tokens": 0, **heldout}, *trained, {"step": 30, "tokens": 3000, **heldout}]


def training_result(shown, params):
    return TrainingResult(
        title="a run",
        records=shown,
        last_step=30,
        total_steps=30,
        exported_step=30,
        evaluations={
            ("heldout", 0): Perplexity(900.0, 900.0, 50, 0.1),
            ("heldout", 30): Perplexity(5.0, 9.0, 20, 0.1),
            ("whole_heldout", 30): Perplexity(4.0, 9.0, 50, 0.1),
        },
        params=params,
        precision="bfloat16",
        tokens_per_step=100,
    )


def test_speed_leaves_out_the_first_report_with_the_compilation():
    params = SmallTraining(small_config(), devices=1).state.params
    actual = summary(training_result(records(), params))
    assert actual["tokens_per_second"] == 100.0  # 2,000 tokens in 20 seconds, not 3,000 in 35
    assert actual["tokens_seen"] == 3000
    assert actual["heldout_perplexity"] == {"forward": 4.0, "backward": 9.0, "average": 6.0}
    assert actual["heldout_perplexity_before"]["average"] == 900.0
    assert summary(training_result(records()[:1], params))["tokens_per_second"] == 0.0


def test_table_and_result(tmp_path):
    result = {
        "heldout_perplexity": {"forward": 109.5, "backward": 108.0, "average": 108.8},
        "heldout_perplexity_before": {"forward": 21_885.0, "backward": 21_228.0, "average": 21_554.0},
        "wall_seconds": 211.0,
        "seconds": {"steps": 180.0, "data": 0.5, "evaluation": 20.0, "checkpoints": 4.5}
        | dict.fromkeys(("compilation", "start", "lost"), 2.0),
        "steps": 1698,
        "tokens_seen": 2_173_440,
        "tokens_per_second": 12_607.0,
        "parameters": 759_184,
        "softmax_parameters": 1_406_860,
    }
    write_result(tmp_path, result)
    assert read_result(epath.Path(tmp_path)) == result
    lines = table(result, tmp_path).splitlines()
    assert lines[1].split() == ["before", "training", "21,885.0", "21,228.0", "21,554.0"]
    assert lines[2].split() == ["after", "training", "109.5", "108.0", "108.8"]
    shares = "85% steps, 9% evaluation, 2% checkpoints and export, 1% compilation, 1% start, 1% lost to restarts"
    assert f"the time: {shares}" in lines
    assert "1,698 steps, 2,173,440 tokens in 3 min 31 s, 12,607 tokens/s" in lines[5]
    assert lines[-1].startswith("next: elmo-jax evaluate")


def test_large_numbers_are_short():
    assert [thousands(value) for value in (0.5, 999, 1000, 2.5e6, 3e9)] == ["0.5", "999", "1 k", "2.5 M", "3 B"]


def test_curve_of_any_run(tmp_path):
    for number, shown in enumerate((records(), records()[:1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        draw_curve(folder, shown, True)
        assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_records_past_a_restored_step_and_half_lines_are_forgotten(tmp_path):
    log = MetricsLog(tmp_path, 0)
    for step in (10, 20, 30):
        log.write(step, {"train/seconds": float(step)})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "train/sec')
    again = MetricsLog(tmp_path, 20)
    assert again.latest("train/seconds") == 20
    again.write(25, {"train/seconds": 25.0})
    again.close()
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [10, 20, 25]


def test_work_at_the_original_size():
    """The forward operations are 33.5 M per word for highways, and 151 M (LSTMs) and 16.8 M (negatives) per token."""
    model = ModelConfig()
    weights_of_filters = sum(width * 16 * number for width, number in model.char_cnn.filters)
    assert flops_per_word(model, 9) - flops_per_word(model, 8) == 2 * weights_of_filters
    assert round((flops_per_word(model, 0) - 2 * 2048 * 512) / 1e6, 1) == 33.6
    assert round(flops_per_token(model, 0) / 1e6) == 151
    assert round((flops_per_token(model, 8192) - flops_per_token(model, 0)) / 1e6, 1) == 16.8


def test_evaluations_take_a_twentieth_of_the_operations():
    config, steps = Config(), 100_000
    tokens = affordable_evaluation(config, 793_471, steps)
    training = 3 * flops_per_token(config.model, 8193) * steps * config.train.tokens_per_step
    evaluations = 12 * tokens * flops_per_token(config.model, 793_471)  # before, after and every 10,000 steps
    assert evaluations / training == pytest.approx(0.05, rel=1e-5)
    assert affordable_evaluation(config, 793_471, 10) == 20_000


def test_a_small_source_may_be_missing_in_the_part_that_is_read_before_the_training():
    part, other = Perplexity(900.0, 900.0, 20, 0.1), Perplexity(4.0, 9.0, 50, 0.1)
    result = training_result(records(), SmallTraining(small_config(), devices=1).state.params)
    result.evaluations["heldout", 0] = replace(part, sources={"big": part})
    result.evaluations["whole_heldout", 30] = replace(other, sources={"big": other, "small": other})
    sources = summary(result)["heldout_sources"]
    assert sources["small"]["before"] is None and sources["small"]["after"]["forward"] == 4.0
    assert sources["big"]["before"]["forward"] == 900.0
