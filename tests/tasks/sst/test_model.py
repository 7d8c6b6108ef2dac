"""The BCN against AllenNLP's, and what holds for every task model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, to_dict
from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.sst.task import BCN, SSTModel
from tests.tasks import checks, weights
from tests.tasks.oracle_cases import each_case

SIZES = {"pre_encoder": 5, "encoder": 4, "integrator": 3, "output_layers": (8, 6)}
SMALL = SSTModel(**SIZES)
MAXOUT = SSTModel(**SIZES, output="maxout")
TABLE = "_text_field_embedder.token_embedder_tokens.weight"


def problem(output=0, lengths=(4, 6, 1, 3), steps=6):
    words = checks.text(0, lengths, steps, 7, output)
    return (words,), {"label": np.random.default_rng(1).integers(0, 5, len(lengths))}


def import_object(params, config):
    layers = [weights.dense(params, f"_output_layer._linear_layers.{i}") for i in range(3)]
    if config.output == "maxout":
        output = {"output": {f"dense_{i}": layer for i, layer in enumerate(layers)}}
    else:
        output = {f"output_{i}": layer for i, layer in enumerate(layers)}
    return {
        "pre_encoder": weights.dense(params, "_pre_encode_feedforward._linear_layers.0"),
        "encoder": weights.bilstm(params, "_encoder._module"),
        "integrator": weights.bilstm(params, "_integrator._module"),
        "self_attentive_pooling": {"score": weights.dense(params, "_self_attentive_pooling_projection")},
        **output,
    }


@each_case("bcn.npz")
def test_is_the_oracle(case):
    config = SMALL if case.name == "feedforward" else MAXOUT
    given, expected = case["input"], case["output"]
    params, model = import_object(case["param"], config), BCN(config)
    elmo = [given["elmo_input"]] if "elmo_input" in given else []

    @jax.jit
    def results(table):
        def loss(table):
            vectors = jnp.concatenate([table[given["tokens"]], *elmo], -1)
            text = Embedded(vectors, given["mask"] > 0, given.get("elmo_output"))
            output, kept = model.apply({"params": params}, text, {"label": given["label"]}, mutable=["intermediates"])
            return output.loss, (output, kept["intermediates"])

        return jax.value_and_grad(loss, has_aux=True)(table)

    (_, (output, kept)), grad = results(case["param"][TABLE])
    for part in ("encoded", "integrated", "pooled", "logits"):
        weights.close(kept[part][0], expected[part])
    weights.close(output.loss, expected["loss"])
    np.testing.assert_array_equal(output.predictions["probabilities"].argmax(-1), expected["logits"].argmax(-1))
    weights.close(grad, case["grad"][TABLE])


@pytest.mark.parametrize(("config", "output"), [(SMALL, 2), pytest.param(MAXOUT, 0, marks=pytest.mark.slow)])
def test_padding_changes_nothing(config, output):
    checks.padding_changes_nothing(BCN(config), problem(output), 3)


def test_permuting_the_batch_permutes_its_outputs():
    checks.permuting_permutes(BCN(SMALL), problem(2))


@pytest.mark.parametrize("config", [SMALL, MAXOUT])
def test_every_parameter_learns(config):
    # the bias of the attention's scores changes no softmax
    checks.every_parameter_learns(BCN(config), problem(2), but=("['self_attentive_pooling']['score']['bias']",))


OFF = {"input_dropout": 0.0, "pre_encoder_dropout": 0.0, "pooled_dropout": 0.0, "output_dropout": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("output", "on"),
    [
        ("feedforward", {"input_dropout": 0.5}),
        ("feedforward", {"pre_encoder_dropout": 0.5}),
        ("feedforward", {"pooled_dropout": 0.5}),
        ("feedforward", {"output_dropout": (0.0, 0.5)}),
        ("maxout", {"output_dropout": (0.5, 0.0)}),
    ],
)
def test_each_dropout_acts_in_training_only(output, on):
    checks.dropout_acts_in_training_only(BCN(SSTModel(**SIZES, **(OFF | on), output=output)), problem())


@pytest.mark.parametrize("config", [SMALL, MAXOUT])
def test_loss_at_the_start_is_that_of_chance(config):
    model, given = BCN(config), problem(lengths=[5] * 40, steps=5)
    output, _ = checks.run(model, checks.init(model, given), given)
    assert_allclose(output.loss, np.log(5), rtol=0.1)
    assert_allclose(output.predictions["probabilities"].sum(-1), 1, rtol=1e-5)


# pre-encoder + encoder + integrator + self-attentive pooling; PyTorch's second bias of an LSTM is not counted here
BELOW = 90_300 + 1_442_400 + 5_042_400 + 601


@pytest.mark.parametrize(
    ("output", "size", "elmo", "expected"),
    [
        ("maxout", 300, 0, BELOW + 11_524_800 + 2_882_400 + 12_020),  # 21.0 M
        ("maxout", 1324, 0, BELOW + 307_200 + 11_524_800 + 2_882_400 + 12_020),  # 21.3 M
        ("maxout", 1324, 1024, BELOW + 307_200 + 1_024 + 31_185_600 + 2_882_400 + 12_020),  # 41.0 M
        ("feedforward", 1324, 1024, BELOW + 307_200 + 1_024 + 7_796_400 + 720_600 + 3_005),
    ],
)
def test_parameter_counts(output, size, elmo, expected):
    label = {"label": jax.ShapeDtypeStruct((2,), np.int32)}
    assert checks.count(BCN(SSTModel(output=output)), (checks.shapes(size, elmo),), label) == expected


def test_settings():
    config = SSTModel(output="maxout")
    assert from_dict(to_dict(config), SSTModel) == config
    with pytest.raises(UserError, match=r"config\.output_dropout: expected one rate for each of the 1 layers"):
        from_dict({"output_layers": [7]}, SSTModel)
    with pytest.raises(UserError, match=r"config\.output_dropout: expected each to be a number of at least 0"):
        from_dict({"output_dropout": [0.1, 1.0]}, SSTModel)
    with pytest.raises(UserError, match=r"config\.output_layers: expected each to be a number of at least 1"):
        from_dict({"output_layers": [7, 0]}, SSTModel)
