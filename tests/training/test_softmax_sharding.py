"""The softmax's rows divided over the devices: the same training, evaluation, checkpoints and export as with all rows
on every device, whatever the text."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.manager import Checkpoints
from elmo_jax.checkpoints.softmax_layout import GROUPS, deinterleave, interleave, rows_of, stored_rows
from elmo_jax.config import EvaluationConfig, OptimizerConfig
from elmo_jax.data.batches import draw_negatives
from elmo_jax.distributed.mesh import REPLICATED, distribute, gather, make_mesh, named_shardings, to_devices
from elmo_jax.errors import UserError
from elmo_jax.model.precision import Precision
from elmo_jax.training import softmax_sharding
from elmo_jax.training.evaluate import Evaluator, with_merged
from elmo_jax.training.partitioning import BATCH_SPECS, params_specs, state_specs
from elmo_jax.training.softmax_sharding import Placement, ShardedRows, Wanted, choose_placement, part_size, round_size
from tests.training.helpers import ROWS, SmallTraining, shared, small_config
from tests.training.programs import COLLECTIVE, loop_computations

DEVICES, VOCABULARY, UNROLL = 4, 300, 20  # with 300 words, there are 212 rows of padding
TARGETS = 2 * UNROLL * ROWS // DEVICES  # of one device
OPTIMIZERS = {
    "adagrad": OptimizerConfig(clip_norm=2.0),
    "adam": OptimizerConfig("adam", learning_rate=0.01, softmax_learning_rate=0.2, clip_norm=2.0),
}


def trainings(optimizer="adagrad", **settings):
    """Returns one training on one device and one that is divided over four."""
    config = small_config(unroll_steps=UNROLL, optimizer=OPTIMIZERS[optimizer], **settings)
    alone = shared(config, 1, vocabulary=VOCABULARY)
    divided = SmallTraining(config, DEVICES, placement=Placement.SHARDED, vocabulary=VOCABULARY)
    batch = to_devices(next(divided.host_batches()), BATCH_SPECS, divided.mesh)
    lowered = divided.program.lower(divided.placed(divided.state), batch, divided.char_ids)
    divided.program = lowered.compile()  # the program is read as well as run
    return alone, divided


@pytest.fixture(scope="module")
def adagrad():
    return trainings()


def text(targets, rng):
    """Returns a text whose 60 words are spread over the vocabulary."""
    return targets * 5


def crowded(targets, rng):
    """Returns a text of many distinct words, all of which belong to the first device."""
    words = np.arange(VOCABULARY)
    return rng.choice(words[words % GROUPS < GROUPS // DEVICES], targets.shape).astype(np.int32)


def one_word(targets, rng):
    return np.full_like(targets, 17)


def asked_most(targets):
    """Returns the largest number of distinct words that one device asks of one owner."""
    rows = np.asarray(rows_of(targets, VOCABULARY))  # [2, T, B]
    of_devices = [np.unique(part) for part in np.split(rows, DEVICES, axis=2)]
    share = stored_rows(VOCABULARY) // DEVICES
    return max(np.bincount(part // share).max() for part in of_devices)


def steps(training, kinds, state=None):
    """Returns the state after each kind of batch, and the metrics."""
    state = training.placed(jax.tree.map(jnp.copy, training.state) if state is None else state)
    batches, rng, actual = training.host_batches(), np.random.default_rng(1), []
    for kind in kinds:
        batch = next(batches)
        batch = batch._replace(window=batch.window._replace(targets=kind(batch.window.targets, rng)))
        overflows = asked_most(batch.window.targets) > round_size(TARGETS, DEVICES)
        assert overflows == (kind is crowded)
        batch = to_devices(batch, BATCH_SPECS, training.mesh)
        state, metrics = training.program(state, batch, training.char_ids)
        actual.append(jax.device_get(metrics))
    return state, actual


def assert_same(one, other):
    for a, b in zip(one[1], other[1], strict=True):
        assert_allclose(a.loss, b.loss, atol=1e-5)
        assert_allclose(a.gradient_norm, b.gradient_norm, rtol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5), one[0], other[0])


@pytest.mark.parametrize("optimizer", ["adagrad", pytest.param("adam", marks=pytest.mark.slow)])
def test_trains_as_with_all_rows_on_every_device(optimizer, request):
    pair = request.getfixturevalue(optimizer) if optimizer == "adagrad" else trainings(optimizer)
    kinds = [text, crowded, one_word, crowded, text, text]
    alone, divided = (steps(training, kinds) for training in pair)
    assert_same(alone, divided)
    for leaf in jax.tree.leaves((divided[0].params["softmax"], divided[0].softmax_accumulator)):
        assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {stored_rows(VOCABULARY) // DEVICES}


def test_gradients_in_many_parts_train_so_too(monkeypatch):
    """A part of seven rows holds a tenth of those that a crowded batch touches on its owner."""
    monkeypatch.setattr(softmax_sharding, "part_size", lambda *sizes: 7)
    alone, divided = (steps(training, [text, crowded, one_word, crowded]) for training in trainings())
    assert_same(alone, divided)


def test_usual_batches_need_one_part():
    """The paper's batches on eight devices: the words of 1 Billion Word by rank, as Zipf's law has them."""
    devices, vocabulary, targets, negatives, rng = 8, 793_471, 5120, 8192, np.random.default_rng(0)
    share = stored_rows(vocabulary) // devices
    size = part_size(targets, 2 * negatives, devices)
    assert size < 6000 < min(share, devices * targets + 2 * negatives)
    for _ in range(5):
        ranks = np.exp(rng.random(devices * targets // 2) * np.log(vocabulary)).astype(int) - 1
        drawn = [draw_negatives(rng, negatives, vocabulary)[0] for _ in range(2)]
        rows = np.asarray(rows_of(np.unique(np.concatenate([ranks, *drawn])), vocabulary))
        assert np.bincount(rows // share).max() <= size


def test_the_full_softmax_trains_so_too():
    alone, divided = (steps(training, [text] * 4) for training in trainings(negatives=0))
    assert_same(alone, divided)


def test_negatives_travel_as_the_product_rounds_them():
    """In bfloat16, the rows of negatives are sent rounded and those of targets are not; the losses are the same."""
    state = SmallTraining(small_config(), 1, vocabulary=VOCABULARY).state.params["softmax"]
    mesh, words = make_mesh(), jnp.arange(3, 33)
    wanted = Wanted(rows_of(words[:10], VOCABULARY), rows_of(words[10:], VOCABULARY))
    spec = Placement.SHARDED.spec
    fetch = jax.shard_map(
        lambda rows: ShardedRows(Precision.BFLOAT16).fetch(rows, wanted)[0],
        mesh=mesh,
        in_specs=spec,
        out_specs=REPLICATED,
        check_vma=False,
    )
    actual, rows = jax.jit(fetch)(state), np.asarray(rows_of(words, VOCABULARY))
    assert np.array_equal(actual["bias"], state["bias"][rows])
    assert np.array_equal(actual["kernel"][:10], state["kernel"][rows[:10]])
    assert np.array_equal(actual["kernel"][10:], state["kernel"][rows[10:]].astype(jnp.bfloat16).astype(jnp.float32))


def test_only_the_rounds_of_requests_exchange_inside_a_loop(adagrad):
    loops = loop_computations(adagrad[1].program.as_text())
    exchanging = {name: set(COLLECTIVE.findall(text)) for name, text in loops.items() if COLLECTIVE.search(text)}
    assert list(exchanging.values()) == [{"all-to-all"}] * 2  # asking for rows and giving gradients back
    for name in exchanging:
        assert not re.search(r"\b(?:dot|while)\(|custom-call\(", loops[name])  # no time step of the biLM is in it
    assert len(loops) > 6


def save(folder, state):
    checkpoints = Checkpoints(folder)
    checkpoints.save(2, state)
    checkpoints.close()


def restore(folder, like, placement, mesh):
    shardings = named_shardings(state_specs(like, mesh, placement), mesh)
    target = jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), like, shardings)
    actual, step = Checkpoints(folder).restore(target)
    assert step == 2
    return actual


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_checkpoint_is_restored_anywhere(adagrad, tmp_path, devices):
    """A checkpoint that is saved on four devices is restored on others, divided or not, and the other way round."""
    alone, divided = adagrad
    state, _ = steps(divided, [text, text])
    kept = jax.device_get(state)
    save(tmp_path, state)
    mesh = make_mesh(jax.devices()[:devices])
    for placement in Placement:
        restored = restore(tmp_path, state, placement, mesh)
        assert restored.params["softmax"]["kernel"].sharding.spec == placement.spec
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), kept)
    if devices == 1:
        assert_same(steps(alone, [crowded], restored), steps(divided, [crowded], kept))
        save(tmp_path / "back", alone.placed(kept))
        again = restore(tmp_path / "back", state, Placement.SHARDED, divided.mesh)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(again), kept)


def test_what_is_exported_is_the_same_bit_for_bit(adagrad):
    natural = jax.device_get(deinterleave(adagrad[0].state.params, VOCABULARY))
    placed = adagrad[1].placed(adagrad[1].state)
    assert len(placed.params["softmax"]["kernel"].addressable_shards[0].data) < VOCABULARY
    exported = deinterleave(gather(placed.params), VOCABULARY)
    assert exported["softmax"]["kernel"].shape[0] == VOCABULARY
    jax.tree.map(np.testing.assert_array_equal, exported, natural)


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("chunk", [9, 10_000])
def test_evaluates_as_with_all_rows_on_every_device(adagrad, chunk, merge):
    training = adagrad[0]
    settings = EvaluationConfig(batch_size=3, unroll_steps=16, vocabulary_chunk=chunk)
    params = jax.device_get(training.state.params)
    # biases that distinguish words and padding
    natural = deinterleave(params, VOCABULARY)
    natural["softmax"] = natural["softmax"] | {"bias": np.linspace(-3, 3, VOCABULARY, dtype=np.float32)}
    merged = np.arange(VOCABULARY) % 5 == 2 if merge else None  # with <UNK>
    params, actual = interleave(with_merged(natural, merged) if merge else natural), []
    for devices, placement in ((1, Placement.REPLICATED), (DEVICES, Placement.SHARDED)):
        mesh = make_mesh(jax.devices()[:devices])
        evaluator = Evaluator(training.step.model, settings, mesh, VOCABULARY, placement, merged)
        placed = distribute(params, params_specs(params, placement), mesh)
        actual.append(evaluator.sentences(placed, training.blocks[:6], training.distinct, training.char_ids))
    (one, scores), (many, others) = actual
    assert_allclose([many.forward, many.backward], [one.forward, one.backward], rtol=1e-5)
    assert_allclose(others.log_probability, scores.log_probability, rtol=1e-5)


def test_at_full_size_no_device_holds_or_moves_what_it_need_not():
    """The exchange alone at V = 793,471 and P = 512, 128 rows a device: read from the compiled program, not run."""
    vocabulary, projection, targets, negatives = 793_471, 512, 2 * 20 * 128, 2 * 8192

    def program(rows, wanted, gradient):
        exchange = ShardedRows()
        fetched, requests = exchange.fetch(rows, wanted)
        return exchange.collect(rows, wanted, requests, jax.tree.map(jnp.multiply, fetched, gradient)).first

    spec = Placement.SHARDED.spec
    mapped = jax.shard_map(
        program,
        mesh=make_mesh(),
        in_specs=(spec, Wanted(spec, REPLICATED), spec),
        out_specs=spec,
        check_vma=False,
    )

    def tree(count):
        shape = jax.ShapeDtypeStruct
        return {"kernel": shape((count, projection), np.float32), "bias": shape((count,), np.float32)}

    ids = Wanted(jax.ShapeDtypeStruct((DEVICES * targets,), np.int32), jax.ShapeDtypeStruct((negatives,), np.int32))
    compiled = (
        jax.jit(mapped).lower(tree(stored_rows(vocabulary)), ids, tree(DEVICES * (targets + negatives))).compile()
    )
    loops = set(loop_computations(compiled.as_text()))
    actual = {}
    for name, part in re.findall(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", compiled.as_text(), re.M | re.S):
        for line in part.splitlines() if name not in loops else ():
            if match := COLLECTIVE.search(line):
                shapes = re.findall(r"(f32|s32|pred)\[([\d,]*)\]", line[: match.start()])
                size = sum(4 * int(np.prod([int(n) for n in dims.split(",") if n])) for _, dims in shapes)
                actual[match[1]] = actual.get(match[1], 0) + size
    row = (projection + 1) * 4
    asked = DEVICES * round_size(targets, DEVICES)
    assert actual["all-to-all"] == 2 * asked * row + 4 * asked  # rows and gradients; ids once
    assert actual["all-reduce"] == pytest.approx(2 * negatives * row, rel=1e-3)
    assert set(actual) == {"all-to-all", "all-reduce"} and sum(actual.values()) < 0.1e9
    held = stored_rows(vocabulary) // DEVICES * row
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes < held + (targets + negatives) * row + 1e6
    assert memory.temp_size_in_bytes < 0.5e9


def test_rows_are_divided_where_that_saves_something():
    paper = {"vocabulary_size": 793_471, "projection": 512, "targets": 5120, "negatives": 16_384}
    tiny = {"vocabulary_size": 21_644, "projection": 64, "targets": 2560, "negatives": 4096}
    chosen = {(n, name): choose_placement("auto", n, **s) for n in (1, 2, 3, 8, 256) for name, s in
              (("paper", paper), ("tiny", tiny))}  # fmt: skip
    divided = {key for key, placement in chosen.items() if placement is Placement.SHARDED}
    # One device has nothing to divide, three cannot divide 256 groups; a small table is divided among many devices.
    assert divided == {(2, "paper"), (8, "paper"), (256, "paper"), (8, "tiny"), (256, "tiny")}
    assert choose_placement("replicated", 8, **paper) is Placement.REPLICATED
    assert choose_placement("sharded", 8, **tiny) is Placement.SHARDED
    with pytest.raises(UserError, match="config.train.softmax: 'sharded' .* 3 devices do not divide") as error:
        choose_placement("sharded", 3, **tiny)
    assert "\n" not in str(error.value)
