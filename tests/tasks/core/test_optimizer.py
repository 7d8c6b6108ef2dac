"""The optimizers of the task models: rates, rules and averages, against numbers computed by hand."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.tasks.core.config import TaskOptimizerConfig
from elmo_jax.tasks.core.program import learning_rate, make_optimizer
from elmo_jax.tasks.core.trainer import best_step, dev_metrics


def rates(steps: range, total: int, **settings: object) -> list[float]:
    config = TaskOptimizerConfig(learning_rate=2.0, **settings)
    return [learning_rate(config, step, total, []) for step in steps]


def test_constant() -> None:
    assert rates(range(0, 1000, 300), 1000) == [2.0] * 4


def test_staircase() -> None:
    actual = rates(range(0, 8), 1000, schedule="staircase", decay=0.5, decay_steps=3)
    assert actual == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.5]


def test_warmup_and_cosine() -> None:
    actual = rates(range(0, 13), 12, schedule="warmup_cosine", warmup_steps=4)
    assert actual[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]  # the first update has a rate
    assert_allclose(actual[5:], [1 + math.cos(math.pi * part / 8) for part in range(1, 9)], atol=1e-12)
    # A warmup longer than half of the steps ends there.
    assert_allclose(rates(range(0, 4), 6, schedule="warmup_cosine", warmup_steps=100), [2 / 3, 4 / 3, 2.0, 2.0])


def test_plateau() -> None:
    """The rate decays after more than `patience` bad evaluations, as in AllenNLP, and counting restarts."""

    def rate(metrics: list[float], patience: int = 1) -> float:
        config = TaskOptimizerConfig(learning_rate=8.0, schedule="plateau", decay=0.5, plateau_patience=patience)
        return learning_rate(config, 0, 100, metrics)

    metrics = [50.0, 60.0, 60.0, 59.0, 58.0, 60.005, 60.007, 60.0, 61.0]
    # 60.005 exceeds 60, but by less than the factor 1 + 1e-4; 60.007 exceeds it by more.
    assert [rate(metrics[:n]) for n in range(len(metrics) + 1)] == [8, 8, 8, 8, 4, 4, 2, 2, 2, 2]
    assert [rate(metrics[:n], patience=0) for n in range(5)] == [8, 8, 8, 4, 2]


def test_the_evaluation_before_training_is_not_in_the_history() -> None:
    records = [
        {"step": 0, "dev/f1": 33.0},
        {"step": 10, "train/loss": 1.0},
        {"step": 10, "dev/f1": 31.0},
        {"step": 20, "dev/f1": 32.0},
        {"step": 30, "dev/f1": 32.0},
    ]
    metrics = dev_metrics(records, "dev/f1")
    assert list(metrics.items()) == [(10, 31.0), (20, 32.0), (30, 32.0)] and best_step(metrics) == 20
    assert best_step(dev_metrics(records[:2], "dev/f1")) is None


def updates(config: TaskOptimizerConfig, gradients: list[list[float]]) -> list[np.ndarray]:
    rule, params = make_optimizer(config), jnp.zeros(len(gradients[0]))
    state, actual = rule.init(params), []
    for gradient in gradients:
        update, state = rule.update(jnp.array(gradient), state, params)
        actual.append(np.asarray(update))
    return actual


def test_elements_are_bounded_before_the_norm_is() -> None:
    """AllenNLP's hooks clamp a gradient as it is computed; `rescale_gradients` then reads the clamped one."""
    config = TaskOptimizerConfig(b1=0.0, b2=0.0, eps=1.0, clip_norm=2.5, clip_value=4.0)
    (actual,) = updates(config, [[3.0, -8.0]])  # clamped to [3, -4], of norm 5, and then halved
    assert_allclose(actual, [-1.5 / (1.5 + 1), 2.0 / (2.0 + 1)], rtol=1e-5)  # Adam: g / (|g| + eps)


def test_adam() -> None:
    config = TaskOptimizerConfig(name="adam", b1=0.5, b2=0.75, eps=1e-8, clip_norm=0.0)
    actual = updates(config, [[2.0], [-1.0]])
    first, second = 0.5 * 2.0, 0.25 * 4.0
    assert_allclose(actual[0], [-(first / 0.5) / math.sqrt(second / 0.25)], rtol=1e-5)
    first, second = 0.5 * first - 0.5, 0.75 * second + 0.25
    assert_allclose(actual[1], [-(first / 0.75) / math.sqrt(second / (1 - 0.75**2))], rtol=1e-5)


def test_adadelta() -> None:
    config = TaskOptimizerConfig(name="adadelta", rho=0.9, eps=1e-2, clip_norm=0.0)
    squares = changes = 0.0
    for gradient, actual in zip([2.0, -1.0, 3.0], updates(config, [[2.0], [-1.0], [3.0]]), strict=True):
        squares = 0.9 * squares + 0.1 * gradient**2
        change = math.sqrt(changes + 1e-2) / math.sqrt(squares + 1e-2) * gradient
        changes = 0.9 * changes + 0.1 * change**2
        assert_allclose(actual, [-change], rtol=1e-5)
