"""The step: rows against the dense update, devices against each other, and what is exchanged where."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.softmax_layout import deinterleave
from elmo_jax.config import LSTMConfig, OptimizerConfig
from elmo_jax.distributed import mesh
from elmo_jax.distributed.cpu import LARGEST_BLOCK
from elmo_jax.distributed.mesh import AXIS, REPLICATED, make_mesh, to_devices
from elmo_jax.model.softmax import log_expected_count, sampled_softmax_losses
from elmo_jax.training import dense_sharding, partitioning
from elmo_jax.training.optimizer import adagrad_rows, combine_rows, lr_schedule
from elmo_jax.training.partitioning import BATCH_SPECS, step_options
from elmo_jax.training.softmax_sharding import Placement
from elmo_jax.training.step import without_softmax
from tests.training.helpers import ROWS, VOCABULARY, SmallTraining, forward_only, shared, small_config, with_dropout
from tests.training.programs import COLLECTIVE, loop_computations


def plain_optimizer(config):
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.scale_by_rss(1.0, eps=0.0),
        optax.scale(-config.learning_rate),
    )


@partial(jax.jit, static_argnums=0)
def plain_step(training, state, batch):
    """Makes the dense update by autodiff of the whole table, Optax's clip and Adagrad; one device, no dropout."""

    def loss(params):
        layers, carry = training.model.apply(
            {"params": params},
            training.char_ids[batch.window.words],
            batch.window.inputs,
            state["carry"],
            count=batch.window.word_count[0],
        )
        losses = []
        for d in range(2):
            hidden = layers[-1][d].reshape(-1, layers[-1].shape[-1])
            targets, negatives = batch.window.targets[d].reshape(-1), batch.negatives[d]
            kernel, bias = params["softmax"]["kernel"], params["softmax"]["bias"]
            expected = [log_expected_count(ids, batch.num_draws[d], VOCABULARY) for ids in (targets, negatives)]
            losses.append(
                sampled_softmax_losses(
                    hidden,
                    (kernel[targets], bias[targets]),
                    (kernel[negatives], bias[negatives]),
                    targets,
                    negatives,
                    tuple(expected),
                ).mean()
            )
        return jnp.mean(jnp.stack(losses)) * training.config.train.unroll_steps, (jnp.stack(losses), carry)

    gradient, (losses, carry) = jax.grad(loss, has_aux=True)(state["params"])
    optimizer = plain_optimizer(training.config.train.optimizer)
    updates, optimizer_state = optimizer.update(gradient, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return (
        {"params": params, "carry": carry, "optimizer": optimizer_state},
        losses,
        jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient))),
    )


def test_rows_equal_the_dense_update_and_count_once_in_the_norm():
    training = shared(small_config(), 1)
    state, metrics = training.run(5)
    params = deinterleave(training.state.params, VOCABULARY)
    optimizer_state = plain_optimizer(training.config.train.optimizer).init(params)
    plain = {"params": params, "carry": training.state.carry, "optimizer": optimizer_state}
    batches, clipped = training.host_batches(), 0
    for n in range(5):
        plain, losses, norm = plain_step(training, plain, jax.tree.map(jnp.asarray, next(batches)))
        assert_allclose(metrics[n].loss, losses, atol=1e-5)
        assert_allclose(metrics[n].gradient_norm, norm, rtol=1e-5)
        clipped += norm > training.config.train.optimizer.clip_norm
    assert clipped >= 3
    params = deinterleave(state.params, VOCABULARY)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), params, dict(plain["params"]))
    sums = plain["optimizer"][1].sum_of_squares
    mine = deinterleave({"softmax": state.softmax_accumulator}, VOCABULARY)["softmax"]
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=2e-5), mine, sums["softmax"])


@pytest.mark.parametrize("negatives", [16, pytest.param(0, marks=pytest.mark.slow)])
def test_one_two_and_four_devices_give_the_same(negatives):
    one, metrics = shared(small_config(negatives=negatives), 1).run(8)
    for devices in (2, 4):
        many, others = shared(small_config(negatives=negatives), devices).run(8)
        for a, b in zip(metrics, others, strict=True):
            assert_allclose(a.loss, b.loss, atol=1e-5)
            assert_allclose(a.gradient_norm, b.gradient_norm, rtol=1e-4)
        jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), one.params, many.params)
        jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5), one.carry, many.carry)


# Adam divides by the root of a sum of squares, so that the rounding of a small gradient becomes visible.
@pytest.mark.parametrize(
    ("optimizer", "tolerance", "groups"), [pytest.param("adagrad", 1e-5, 2, marks=pytest.mark.slow), ("adam", 1e-4, 1)]
)
def test_divided_updates_equal_whole_ones(optimizer, tolerance, groups, monkeypatch):
    config = small_config()
    settings = dataclasses.replace(config.train.optimizer, name=optimizer, clip_norm=0.5)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, optimizer=settings))
    whole, metrics = SmallTraining(config, 2 * groups).run(4)
    monkeypatch.setattr(dense_sharding, "LEAST", 64)
    monkeypatch.setattr(mesh, "GROUP", 2)
    training = SmallTraining(config, 2 * groups)
    divided, others = training.run(4)
    arrays = jax.tree.leaves(training.placed(training.state).dense_optimizer)
    shapes = {array.shape: array.addressable_shards[0].data.shape for array in arrays}
    rows, columns = training.state.params["forward"]["layer_0"]["kernel"].shape
    assert shapes[rows, columns] == (rows // 2, columns)
    for a, b in zip(metrics, others, strict=True):
        assert b.gradient_norm > 0.5  # which is clipped
        assert_allclose(b.loss, a.loss, atol=1e-5)
        assert_allclose(b.gradient_norm, a.gradient_norm, rtol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(b, a, atol=tolerance), whole, divided)


@pytest.mark.parametrize(
    ("devices", "accumulate", "placement", "settings"),
    [
        pytest.param(1, 4, Placement.REPLICATED, {"negatives": 16, "carry": "block"}, marks=pytest.mark.slow),
        (2, 2, Placement.SHARDED, {"negatives": 16, "carry": "block"}),
        pytest.param(2, 2, Placement.REPLICATED, {"negatives": 0}, marks=pytest.mark.slow),
    ],
)
def test_groups_of_rows_give_what_as_many_devices_give(devices, accumulate, placement, settings):
    """The dropout masks are the same too."""
    many, metrics = shared(with_dropout(small_config(**settings), 0.3), 4).run(6)
    config = with_dropout(small_config(accumulate=accumulate, **settings), 0.3)
    few, others = shared(config, devices, placement=placement).run(6)
    for a, b in zip(metrics, others, strict=True):
        assert_allclose(a.loss, b.loss, atol=1e-5)
        assert_allclose(a.gradient_norm, b.gradient_norm, rtol=1e-5)
    for name in ("params", "softmax_accumulator", "carry"):
        jax.tree.map(partial(assert_allclose, atol=1e-5), getattr(few, name), getattr(many, name))


@pytest.mark.parametrize("negatives", [pytest.param(0, marks=pytest.mark.slow), 16])
def test_a_forward_only_language_model_starts_with_the_forward_loss_and_learns(negatives):
    config = small_config(negatives=negatives)
    half = shared(forward_only(config), 2)
    _, (metrics,) = shared(config, 2).run(1)
    state, actual = half.run(10)
    assert "backward" not in state.params
    assert_allclose(actual[0].loss, metrics.loss[:1], rtol=1e-5)
    assert actual[-1].loss[0] < actual[0].loss[0] - 0.1


def test_all_devices_hold_the_same_parameters():
    training = shared(with_dropout(small_config(), 0.3), 4)
    state = training.placed(training.state)
    batches = training.host_batches()
    for _ in range(3):
        batch = to_devices(next(batches), BATCH_SPECS, training.mesh)
        state, _ = training.program(state, batch, training.char_ids)
    for leaf in jax.tree.leaves((state.params, state.dense_optimizer, state.softmax_accumulator)):
        first, *others = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(others) == 3 and all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_nothing_is_exchanged_inside_a_loop(accumulate):
    training = shared(small_config(accumulate=accumulate), 4)
    batch = to_devices(next(training.host_batches()), BATCH_SPECS, training.mesh)
    compiled = training.program.lower(training.placed(training.state), batch, training.char_ids).compile().as_text()
    loops = loop_computations(compiled)
    assert len(loops) >= 6  # the words, the positions, two directions of two layers, forward and backward
    assert COLLECTIVE.search(compiled)  # there are exchanges, but
    assert not [name for name, text in loops.items() if COLLECTIVE.search(text)]


def test_the_reader_of_programs_sees_an_exchange_in_a_loop():
    mesh = make_mesh()

    def bad(x):
        return jax.lax.scan(lambda c, _: (jax.lax.pmean(c, AXIS), None), x, None, length=3)[0]

    mapped = jax.shard_map(bad, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=REPLICATED, check_vma=False)
    compiled = jax.jit(mapped).lower(jnp.ones(8)).compile().as_text()
    assert [name for name, text in loop_computations(compiled).items() if COLLECTIVE.search(text)]


def test_combined_rows_occur_once_and_keep_the_sum():
    ids = jnp.array([3, 1, 3, 0, 3, 1])
    gradient = {"kernel": jnp.arange(12.0).reshape(6, 2), "bias": jnp.arange(6.0)}
    rows, total = combine_rows(ids, gradient, 5)
    real = np.asarray(rows) < 5
    assert sorted(np.asarray(rows)[real]) == [0, 1, 3] and len(set(np.asarray(rows).tolist())) == 6
    dense = jnp.zeros((5, 2)).at[ids].add(gradient["kernel"])
    assert_allclose(total["kernel"][real], dense[rows[real]])
    assert np.all(total["kernel"][~real] == 0)
    assert_allclose(total["bias"].sum(), 15)


def test_rows_without_gradient_stay_bit_equal():
    values, sums = jnp.arange(10.0).reshape(5, 2), jnp.ones((5, 2))
    new, new_sums = adagrad_rows(values, sums, jnp.array([3, 7, 1]), jnp.ones((3, 2)), jnp.float32(0.2))
    assert np.array_equal(new[jnp.array([0, 2, 4])], values[jnp.array([0, 2, 4])])
    assert_allclose(new[3], values[3] - 0.2 / np.sqrt(2), rtol=1e-5)
    assert_allclose(new_sums[:, 0], [1, 2, 1, 2, 1])


def test_adam_and_the_schedule_train_too():
    optimizer = OptimizerConfig(
        "adam", learning_rate=0.01, softmax_learning_rate=0.2, schedule="warmup_cosine", warmup_steps=4
    )
    training = shared(small_config(optimizer=optimizer, steps=20), 2)
    state, metrics = training.run(20)
    assert metrics[-1].loss.mean() < metrics[0].loss.mean()
    rates = [float(m.learning_rate) for m in metrics]
    assert rates[0] == 0 and max(rates) == pytest.approx(0.01) and rates[-1] < 0.001
    adam = state.dense_optimizer[0]
    assert set(adam.mu) == set(without_softmax(state.params))  # no moments are kept for the softmax


def test_a_warm_up_starts_at_zero_and_a_constant_is_constant():
    constant = lr_schedule(OptimizerConfig(), 100)
    assert [float(constant(jnp.int32(n))) for n in (0, 50, 100)] == [1, 1, 1]
    cosine = lr_schedule(OptimizerConfig(schedule="warmup_cosine", warmup_steps=10, final_fraction=0.1), 100)
    assert_allclose([float(cosine(jnp.int32(n))) for n in (0, 5, 10, 100)], [0, 0.5, 1, 0.1], atol=1e-5)


@pytest.mark.parametrize(
    ("devices", "placement"), [(2, Placement.REPLICATED), pytest.param(2, Placement.SHARDED, marks=pytest.mark.slow)]
)
def test_bfloat16_follows_float32(devices, placement):
    _, exact = shared(small_config(), devices, placement=placement).run(6)
    state, rounded = shared(small_config(precision="bfloat16"), devices, placement=placement).run(6)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((state.params, state.softmax_accumulator)))
    for a, b in zip(exact, rounded, strict=True):
        assert_allclose(a.loss, b.loss, rtol=0.02)
        assert np.abs(a.loss - b.loss).max() > 1e-6  # the step does compute in bfloat16


def test_the_carry_starts_again_with_each_block_if_asked():
    endless, block = (shared(small_config(carry=carry), 2) for carry in ("endless", "block"))
    batches = block.host_batches()
    begun = [next(batches).reset_state.any(axis=0) for _ in range(12)]  # [steps, rows]
    assert begun[0].all() and not begun[1].all()
    first, second = endless.run(12)[1], block.run(12)[1]
    same = [np.allclose(a.loss, b.loss, atol=1e-7) for a, b in zip(first, second, strict=True)]
    later = next(n for n in range(1, 12) if begun[n].any())
    assert all(same[:later])  # the first step starts from zero either way
    assert not any(same[later:])


def test_every_step_and_every_device_drops_other_numbers():
    for rate in (0.5, 0.0):
        training = shared(with_dropout(small_config(), rate), 2)
        batch = next(training.host_batches())
        rows = np.r_[0 : ROWS // 2, 0 : ROWS // 2]  # both devices read the same rows
        half = len(batch.window.words) // 2
        window = batch.window._replace(
            words=np.tile(batch.window.words[:half], 2),
            word_count=np.tile(batch.window.word_count[:1], 2),
            inputs=batch.window.inputs[:, :, rows],
            targets=batch.window.targets[:, :, rows],
        )
        placed = to_devices(batch._replace(window=window), BATCH_SPECS, training.mesh)
        actual, carries = [], []
        for step in (0, 1):
            state = dataclasses.replace(jax.tree.map(jnp.copy, training.state), step=jnp.int32(step))
            state, metrics = training.program(training.placed(state), placed, training.char_ids)
            actual.append(np.asarray(metrics.loss))
            carries.append(np.asarray(state.carry["layer_1"].cell))
        same_devices = np.array_equal(carries[0][:, : ROWS // 2], carries[0][:, ROWS // 2 :])
        assert np.array_equal(actual[0], actual[1]) == (rate == 0)
        assert same_devices == (rate == 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Error writing persistent compilation cache")  # JAX 0.10.2 cannot keep it
def test_several_blocks_of_temporary_memory_give_the_same_numbers(monkeypatch):
    states = []
    for options in ({}, {"xla_multiheap_size_constraint_per_heap": 4096}):
        monkeypatch.setattr(partitioning, "step_options", lambda step, mesh, options=options: options)
        states.append(SmallTraining(with_dropout(small_config(), 0.1), devices=2).run(3)[0])
    for one, several in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(one, several)


def test_largest_array_decides_the_limit_of_a_block():
    def limit(**train):
        config = small_config()
        training = SmallTraining(dataclasses.replace(config, train=dataclasses.replace(config.train, **train)), 2)
        return step_options(training.step, training.mesh)["xla_multiheap_size_constraint_per_heap"]

    config = small_config()
    tokens = config.train.batch_size // 2 * config.train.unroll_steps
    assert limit() == LARGEST_BLOCK
    assert limit(negatives=2**20) == 4 * tokens * 2**20
    assert limit(batch_size=2**20) > LARGEST_BLOCK


def test_large_models_have_one_block():
    training = SmallTraining(small_config(), 2)
    large = dataclasses.replace(training.model.config, lstm=LSTMConfig())
    step = dataclasses.replace(training.step, model=training.model.clone(config=large))
    assert step_options(step, training.mesh) is None
