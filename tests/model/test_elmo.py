"""The ELMo module: equation 1, the two layer norms, what is frozen, and the ways to run it."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

import elmo_jax
from elmo_jax import (
    ELMo,
    FrozenBiLM,
    LayerNorm,
    Layers,
    ScalarMix,
    UserError,
    add_bilm,
    character_ids,
    with_bilm,
)
from elmo_jax.characters import encode_chars
from elmo_jax.checkpoints.layout import fingerprint, flatten
from elmo_jax.model import sentences
from elmo_jax.model.precision import Precision
from tests.model.elmo_modules import CONFIG, SENTENCES, SIZE, bilm_of, by_hand, made, run


@pytest.fixture(scope="module")
def bilm() -> elmo_jax.EmbeddingBiLM:
    return bilm_of()


@pytest.fixture(scope="module")
def characters() -> np.ndarray:
    return character_ids(SENTENCES, SIZE)


def test_equation_1_from_embed_and_from_characters(bilm, characters):
    module, variables = made(bilm, characters, num_mixes=2)
    out = run(module, variables, characters)
    layers, mask, _ = bilm.embed(SENTENCES)
    assert_array_equal(out.mask, mask)
    precomputed = run(module, variables, layers, mask, method="mix")
    for i in range(2):
        expected = by_hand(layers, mask, variables["params"][f"mix_{i}"], norm=False)
        assert_allclose(out.mixes[i], expected, atol=1e-5)
        assert_allclose(precomputed.mixes[i], expected, atol=1e-5)
        assert not np.asarray(out.mixes[i])[~mask].any()
    assert np.abs(out.mixes[0] - out.mixes[1]).max() > 0.01  # each its own


def test_batches_padded_to_a_ladder_have_one_program_and_the_same_vectors(bilm, characters):
    module, variables = made(bilm, characters)
    apply = jax.jit(module.apply)
    for batch in (SENTENCES, SENTENCES[:1]):
        expected = run(module, variables, bilm.character_ids(batch))
        padded = apply(variables, bilm.character_ids(batch, rows=6, steps=9))
        (rows, steps), inside = expected.mask.shape, np.zeros((6, 9), bool)
        inside[:rows, :steps] = expected.mask
        assert_array_equal(padded.mask, inside)
        assert_allclose(padded.mixes[0][:rows, :steps], expected.mixes[0], atol=1e-5)
        assert not np.asarray(padded.mixes[0])[~inside].any()
        assert bilm.character_ids(batch, rows=6, steps=9).shape[:2] == (6, 9)
    assert_array_equal(bilm.character_ids(SENTENCES, rows=1, steps=1), characters)  # both are minimal sizes


def test_starts_as_the_mean_of_the_layers(bilm, characters):
    module = bilm.elmo()
    variables = jax.jit(module.init)(jax.random.key(0), characters)
    mix = variables["params"]["mix_0"]
    assert float(mix["gamma"]) == 1 and mix["weights"].shape == (3,) and not np.any(mix["weights"])
    layers, _, _ = bilm.embed(SENTENCES)
    assert_allclose(run(module, with_bilm(variables, bilm), characters).mixes[0], layers.mean(1), atol=1e-5)


def test_top_has_a_scale_alone(bilm, characters):
    module, variables = made(
        bilm, characters, layers=Layers.TOP, layer_norm=LayerNorm.WITHOUT_BOS_EOS, regularization=1
    )
    assert list(variables["params"]["mix_0"]) == ["gamma"]
    layers, _, _ = bilm.embed(SENTENCES)
    out = run(module, variables, characters)
    assert_allclose(out.mixes[0], float(variables["params"]["mix_0"]["gamma"]) * layers[:, -1], atol=1e-5)
    assert out.penalty == 0


def test_layer_norm_without_marks_counts_the_words(bilm, characters):
    module, variables = made(bilm, characters, layer_norm=LayerNorm.WITHOUT_BOS_EOS)
    layers, mask, _ = bilm.embed(SENTENCES)
    expected = by_hand(layers, mask, variables["params"]["mix_0"], norm=True)
    assert_allclose(run(module, variables, characters).mixes[0], expected, atol=1e-5)
    assert_allclose(run(module, variables, layers, mask, method="mix").mixes[0], expected, atol=1e-5)


def test_layer_norm_with_marks_counts_them_too(bilm, characters):
    module, variables = made(bilm, characters, layer_norm=LayerNorm.WITH_BOS_EOS)
    marked, _ = run(module, variables, characters, None, method="_bilm")  # [B, L+1, T+2, 2P]
    lengths = np.array([len(sentence) for sentence in SENTENCES])[:, None]
    counted = (np.arange(marked.shape[2]) < lengths + 2) & (lengths > 0)
    for row, sentence in enumerate(SENTENCES):  # the token vectors show that the marks are in their places
        begin, end = bilm.words(["<S>", "</S>"])
        assert_allclose(marked[row, 0, 0, :5], begin, atol=1e-5)
        assert_allclose(marked[row, 0, len(sentence) + 1, 5:], end, atol=1e-5)
    words = np.arange(marked.shape[2] - 2) < lengths
    expected = by_hand(marked, counted, variables["params"]["mix_0"], norm=True)[:, 1:-1] * words[..., None]
    actual = run(module, variables, characters).mixes[0]
    assert_allclose(actual, expected, atol=1e-5)
    other = run(made(bilm, characters, layer_norm=LayerNorm.WITHOUT_BOS_EOS)[0], variables, characters).mixes[0]
    assert np.abs(actual - other).max() > 1e-3
    with pytest.raises(ValueError, match="WITH_BOS_EOS needs the boundary tokens"):
        run(module, variables, *bilm.embed(SENTENCES)[:2], method="mix")


@pytest.mark.parametrize("norm", list(LayerNorm))
def test_rows_of_padding_change_nothing(bilm, characters, norm):
    module, variables = made(bilm, characters, layer_norm=norm)
    padded = np.pad(characters, ((0, 4), (0, 3), (0, 0)))
    actual = run(module, variables, padded).mixes[0]
    assert_allclose(actual[:4, :5], run(module, variables, characters).mixes[0], atol=1e-5)
    assert not actual[4:].any()


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_layers_of_half_precision_are_summed_in_float32(bilm, characters, dtype):
    """A sum over the numbers of a batch is beyond the range of float16: here 7,000 words of 10 numbers."""
    module, variables = made(bilm, characters, layer_norm=LayerNorm.WITHOUT_BOS_EOS)
    layers = np.random.default_rng(0).normal(0.1, 0.5, (70, 3, 100, 10)).astype("f4")
    mask = np.ones((70, 100), bool)
    exact = run(module, variables, layers, mask, method="mix").mixes[0]
    actual = run(module, variables, layers.astype(dtype), mask, method="mix").mixes[0]
    assert actual.dtype == jnp.float32
    assert_allclose(actual, exact, atol=0.003 if dtype is np.float16 else 0.024)


def test_settings_are_given_by_name_too(bilm, characters):
    for chosen in (Layers.ALL, Layers.TOP, *LayerNorm):
        key = "layers" if isinstance(chosen, Layers) else "layer_norm"
        module, variables = made(bilm, characters, **{key: chosen})
        named = bilm.elmo(**{key: chosen.value})
        assert named == module
        assert_array_equal(run(named, variables, characters).mixes[0], run(module, variables, characters).mixes[0])
    assert bilm.elmo(precision="bfloat16").precision is Precision.BFLOAT16
    assert ScalarMix("top").layers is Layers.TOP


def test_penalty_is_the_sum_over_all_raw_weights(bilm, characters):
    module, variables = made(bilm, characters, num_mixes=2, regularization=0.25)
    squares = sum(float((mix["weights"] ** 2).sum()) for mix in variables["params"].values())
    assert_allclose(run(module, variables, characters).penalty, 0.25 * squares, rtol=1e-5)


def test_dropout_is_on_the_result_only(bilm, characters):
    module, variables = made(bilm, characters, num_mixes=2, dropout=0.5)
    still = run(module, variables, characters)
    out = run(module, variables, characters, deterministic=False, rngs={"dropout": jax.random.key(1)})
    for plain, dropped in zip(still.mixes, out.mixes, strict=True):
        kept = np.asarray(dropped != 0)
        assert_allclose(np.asarray(dropped)[kept], 2 * np.asarray(plain)[kept], rtol=1e-5)  # nothing inside was touched
        assert 0.3 < kept[np.asarray(plain) != 0].mean() < 0.7
    assert np.any((out.mixes[0] != 0) != (out.mixes[1] != 0))


class Tagger(nn.Module):
    """A task model that contains the module."""

    elmo: ELMo

    @nn.compact
    def __call__(self, characters):
        out = self.elmo(characters)
        return nn.Dense(3)(out.mixes[0]), out.penalty


def test_the_bilm_is_frozen_and_in_no_checkpoint(bilm, characters, tmp_path):
    model = Tagger(bilm.elmo())
    variables = jax.jit(model.init)(jax.random.key(0), characters)
    assert set(variables) == {"params", "elmo"}
    assert (
        sum(leaf.size for leaf in jax.tree.leaves(variables)) == 1 + 3 + 10 * 3 + 3 + 32
    )  # a fingerprint has 32 bytes
    params = variables["params"]
    assert len(jax.tree.leaves(optax.adam(1e-3).init(params))) == 2 * len(jax.tree.leaves(params)) + 1

    def loss(everything, characters):
        logits, penalty = model.apply(everything, characters)
        return (logits**2).sum() + penalty

    full = with_bilm(variables, bilm)
    floats = {name: full[name] for name in ("params", "bilm")}
    gradients = jax.jit(jax.grad(lambda tree: loss({**tree, "elmo": full["elmo"]}, characters)))(floats)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["params"]))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients["bilm"]))

    # no backward pass is run: the gradient has as many loops over time as the loss
    def loops(function):
        return str(jax.make_jaxpr(function)(params)).count("scan[")

    def of_params(p):
        return loss({**full, "params": p}, characters)

    assert loops(jax.grad(of_params)) == loops(of_params)

    stored = {"params": params, "elmo": variables["elmo"]}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "task", stored)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "task", stored)
    again = with_bilm(restored, bilm)
    apply = jax.jit(model.apply)
    assert_array_equal(apply(again, characters)[0], apply(full, characters)[0])
    with pytest.raises(UserError, match="made with another biLM: its fingerprint is"):
        with_bilm(restored, bilm_of(seed=5))


def test_without_its_bilm_it_says_what_to_do(bilm, characters):
    module = bilm.elmo()
    variables = jax.jit(module.init)(jax.random.key(0), characters)
    with pytest.raises(ValueError, match="with_bilm"):
        run(module, variables, characters)
    with pytest.raises(UserError, match="no collection 'elmo'"):
        with_bilm({"params": {}}, bilm)


def test_jit_equals_op_by_op(bilm, characters):
    module, variables = made(bilm, characters)
    expected = module.apply(variables, characters)
    assert_allclose(run(module, variables, characters).mixes[0], expected.mixes[0], atol=1e-5)


@pytest.mark.parametrize(
    ("norm", "check"),
    [
        *((norm, True) for norm in LayerNorm),
        (LayerNorm.WITHOUT_BOS_EOS, False),  # the one that is summed over the devices
        *(pytest.param(norm, False, marks=pytest.mark.slow) for norm in LayerNorm if norm != LayerNorm.WITHOUT_BOS_EOS),
    ],
)
def test_shard_map(bilm, norm, check):
    """With and without its check of what varies over the devices; the gradient of the mix, too."""
    characters = character_ids([["the", "cat"], ["a"], [], ["b", "c", "d", "e"]] * 2, SIZE)
    module, variables = made(bilm, characters, layer_norm=norm)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, spread = PartitionSpec("data"), module.clone(axis_name="data")
    mapped = jax.shard_map(
        lambda v, c: spread.apply(v, c).mixes[0],
        mesh=mesh, in_specs=(PartitionSpec(), rows), out_specs=rows, check_vma=check,
    )  # fmt: skip
    expected = run(module, variables, characters).mixes[0]
    assert_allclose(jax.jit(mapped)(variables, characters), expected, atol=1e-5)

    def gradient(of):
        total = lambda p: (of({**variables, "params": p}, characters) ** 2).sum()  # noqa: E731
        return jax.jit(jax.grad(total))(variables["params"])

    actual, wanted = gradient(mapped), gradient(lambda v, c: module.apply(v, c).mixes[0])
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-5, atol=1e-5), actual, wanted)


def test_batches_over_devices_with_a_bilm_that_embeds_on_others(bilm, characters):
    module = bilm.elmo()
    stored = jax.jit(module.init)(jax.random.key(0), characters)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(characters, NamedSharding(mesh, PartitionSpec("data")))
    actual = jax.jit(module.apply)(with_bilm(stored, bilm.on(jax.devices())), spread).mixes[0]
    assert_allclose(actual, run(module, with_bilm(stored, bilm), characters).mixes[0], atol=1e-5)


def test_without_a_fingerprint_nothing_is_checked_and_orbax_saves_it(bilm, characters, tmp_path):
    stored = jax.jit(ELMo(bilm.config).init)(jax.random.key(0), characters)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "task", stored)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "task", stored)
    assert "bilm" in with_bilm(restored, bilm)


def test_bfloat16(bilm, characters):
    module, variables = made(bilm, characters)
    exact = run(module, variables, characters).mixes[0]
    rounded = run(module.clone(precision=Precision.BFLOAT16), variables, characters).mixes[0]
    assert rounded.dtype == jnp.float32 and 1e-5 < np.abs(exact - rounded).max() < 0.012


class NNXTagger(nnx.Module):
    def __init__(self, bilm, characters, rngs):
        self.elmo = add_bilm(nnx.bridge.ToNNX(bilm.elmo(), rngs=rngs).lazy_init(characters), bilm)
        self.head = nnx.Linear(10, 3, rngs=rngs)

    def __call__(self, characters):
        return self.head(self.elmo(characters).mixes[0])


def test_from_nnx(bilm, characters):
    model = NNXTagger(bilm, characters, nnx.Rngs(0))
    layers, _, _ = bilm.embed(SENTENCES)
    assert_allclose(nnx.jit(lambda m, c: m(c))(model, characters), model.head(layers.mean(1)), atol=1e-5)
    gradients = nnx.jit(nnx.grad(lambda m, c: (m(c) ** 2).sum()))(model, characters)
    assert sum(leaf.size for leaf in jax.tree.leaves(gradients)) == 1 + 3 + 30 + 3  # the mix and the head, nothing else
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients["elmo"]))
    stored = nnx.state(model, nnx.Not(FrozenBiLM))
    assert sum(leaf.size for leaf in jax.tree.leaves(stored) if leaf.dtype == jnp.float32) == 1 + 3 + 30 + 3
    assert stored["elmo"]["fingerprint"][...].size == 32
    with pytest.raises(UserError, match="made with another biLM"):
        add_bilm(model.elmo, bilm_of(seed=5))
    with pytest.raises(UserError, match="module: expected nnx.bridge.ToNNX"):
        add_bilm(model, bilm)


def test_a_restore_into_a_model_of_another_bilm_is_noticed(bilm, characters):
    """In NNX, the stored fingerprint takes the place of the model's; in Linen, that of merged variables does."""
    other = bilm_of(seed=5)
    stored = nnx.state(NNXTagger(other, characters, nnx.Rngs(0)), nnx.Not(FrozenBiLM))
    model = NNXTagger(bilm, characters, nnx.Rngs(0))
    nnx.update(model, stored)
    module, variables = made(bilm, characters)
    merged = variables | {"elmo": made(other, characters)[1]["elmo"]}
    for call in (lambda: model(characters), lambda: module.apply(merged, characters)):
        with pytest.raises(UserError, match="the variables were made with another biLM"):
            call()
    assert np.isnan(nnx.jit(lambda m, c: m(c))(model, characters)[0, :3]).all()
    assert np.isnan(run(module, merged, characters).mixes[0][0, :3]).all()
    with pytest.raises(UserError, match="made with another biLM"):
        add_bilm(model.elmo, bilm)
    add_bilm(model.elmo, other)
    assert np.isfinite(model(characters)).all()


def test_a_bilm_with_and_without_its_softmax_is_the_same_one(bilm, characters):
    """Vectors do not depend on the softmax, which a run has and a small export lacks."""
    kernel = {"kernel": np.ones((3, CONFIG.lstm.projection), "f4"), "bias": np.ones(3, "f4")}
    params = {**bilm.params, "softmax": kernel}
    full = elmo_jax.PretrainedBiLM(CONFIG, params, ["a", "b", "c"], {}, fingerprint(flatten(params)))
    trained = elmo_jax.EmbeddingBiLM.of(full)
    assert trained.fingerprint == full.fingerprint != bilm.fingerprint and "softmax" in trained.params
    stored = jax.jit(trained.elmo().init)(jax.random.key(0), characters)
    for same in (bilm, full, trained, trained.without_softmax()):
        assert set(with_bilm(stored, same)["bilm"]["tree"]) == set(bilm.params)


def test_without_a_fingerprint_of_the_bilm_nothing_is_checked(bilm, characters):
    plain = elmo_jax.PretrainedBiLM(CONFIG, bilm.params, None, {}, "")
    module = ELMo(CONFIG)
    variables = with_bilm(jax.jit(module.init)(jax.random.key(0), characters), plain)
    assert np.isfinite(run(module, variables, characters).mixes[0]).all()


def test_what_no_parameter_shows_is_part_of_a_fingerprint(bilm):
    """Options that do not fit published weights change vectors, which may be cached."""
    usual = dataclasses.replace(CONFIG, char_cnn=dataclasses.replace(CONFIG.char_cnn, max_characters=50))

    def fingerprint_of(part="lstm", **settings):
        changed = dataclasses.replace(usual, **{part: dataclasses.replace(getattr(usual, part), **settings)})
        return elmo_jax.PretrainedBiLM(changed, bilm.params, None, {}, "ab" * 32).vectors_fingerprint

    others = [
        fingerprint_of(skip_connections=False),
        fingerprint_of(cell_clip=0.0),
        fingerprint_of(projection_clip=1.0),
        fingerprint_of("char_cnn", activation="tanh"),
        fingerprint_of("char_cnn", max_characters=11),
    ]
    assert fingerprint_of() == "ab" * 32 and len({*others, "ab" * 32}) == 6


def test_calls_outside_of_jit_compile_once(bilm, characters):
    module, variables = made(bilm, characters)
    module.apply(variables, characters)
    names: list[str] = []

    def count(name, seconds, **keywords):
        names.append(name)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        module.apply(variables, characters[::-1])
        before = names.count("/jax/core/compile/backend_compile_duration")
        jax.jit(lambda x: x * 17)(3.0)
        after = names.count("/jax/core/compile/backend_compile_duration")
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert (before, after) == (0, 1)


def test_a_norm_of_all_devices_is_initialized_on_one(bilm, characters):
    spread = bilm.elmo(layer_norm="without_bos_eos", axis_name="data")
    expected = bilm.elmo(layer_norm="without_bos_eos").init(jax.random.key(0), characters)
    jax.tree.map(assert_array_equal, spread.init(jax.random.key(0), characters), expected)


def test_marks_are_those_of_the_speller():
    for mark, word in zip(sentences.BOS_EOS, ("<S>", "</S>"), strict=True):
        assert_array_equal(encode_chars([word], SIZE)[0, :3], mark)


def test_scalar_mix_alone():
    layers = np.random.default_rng(0).normal(size=(2, 4, 3, 5)).astype("f4")
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    mixed, squares = ScalarMix().init_with_output(jax.random.key(0), layers, mask)[0]
    assert_allclose(mixed, layers.mean(1) * mask[..., None], atol=1e-5)
    assert squares == 0
