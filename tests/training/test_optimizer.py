"""Tests the optimizers with the least constants that the settings allow."""

import dataclasses

import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal

from elmo_jax.config import OptimizerConfig
from elmo_jax.tasks.core.config import TaskOptimizerConfig
from elmo_jax.training.optimizer import adagrad_rows, dense_optimizer


def least(config, name):
    """Returns the least value that a setting may have."""
    (field,) = [field for field in dataclasses.fields(config) if field.name == name]
    return field.metadata["range"].least


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_a_gradient_of_zero_changes_nothing(name):
    constants = {each: least(OptimizerConfig, each) for each in ("initial_accumulator", "adam_eps")}
    optimizer = dense_optimizer(OptimizerConfig(name, **constants), lambda step: jnp.ones(()))
    values, gradient = jnp.array([1.0, 2.0]), jnp.array([0.0, 1e-3])
    updates, _ = optimizer.update(gradient, optimizer.init(values), values)
    assert updates[0] == 0 and updates[1] < 0


def test_a_gradient_of_zero_changes_no_row():
    sums = jnp.full((2, 3), least(OptimizerConfig, "initial_accumulator"))
    values = jnp.ones((2, 3))
    changed, _ = adagrad_rows(values, sums, jnp.array([1]), jnp.zeros((1, 3)), jnp.float32(0.1))
    assert_array_equal(changed, values)


def test_the_constant_of_the_task_optimizers_is_not_zero_in_float32():
    assert jnp.float32(least(TaskOptimizerConfig, "eps")) > 0
