"""ESIM against AllenNLP's, and what holds for every task model."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.settings import from_dict, to_dict
from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.snli.task import ESIM, SNLIModel
from tests.tasks import checks, weights
from tests.tasks.oracle_cases import each_case

SIZES = {"encoder": 4, "projection": 5, "composition": 3, "output": 7}
SMALL = SNLIModel(**SIZES)
TABLE = "_text_field_embedder.token_embedder_tokens.weight"


def problem(output=0, lengths=((4, 6, 1, 3), (2, 5, 4, 1))):
    texts = tuple(checks.text(i, side, 6 - i, 7, output) for i, side in enumerate(lengths))
    return texts, {"label": np.random.default_rng(2).integers(0, 3, len(lengths[0]))}


def import_object(params):
    return {
        "encoder": weights.bilstm(params, "_encoder._module"),
        "projection": weights.dense(params, "_projection_feedforward._linear_layers.0"),
        "composition": weights.bilstm(params, "_inference_encoder._module"),
        "output": weights.dense(params, "_output_feedforward._linear_layers.0"),
        "logit": weights.dense(params, "_output_logit._linear_layers.0"),
    }


@each_case("esim.npz")
def test_is_the_oracle(case):
    given, expected, model = case["input"], case["output"], ESIM(SMALL)

    @jax.jit
    def results(table, params):
        def loss(table, params):
            texts = [Embedded(table[given[side]], given[f"{side}_mask"] > 0) for side in ("premise", "hypothesis")]
            arrays = {"label": given["label"]}
            output, kept = model.apply({"params": params}, *texts, arrays, mutable=["intermediates"])
            return output.loss, (output, kept["intermediates"])

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(table, params)

    (_, (output, kept)), (of_table, of_params) = results(case["param"][TABLE], import_object(case["param"]))
    for part in ("encoded", "projected", "composed"):
        for side, actual in zip(("premise", "hypothesis"), kept[part], strict=True):
            mask = given[f"{side}_mask"][..., None] > 0
            target = expected[f"{part}_{side}"]
            weights.close(np.where(mask, actual, target), target)
    weights.close(kept["pooled"][0], expected["pooled"])
    weights.close(kept["logits"][0], expected["logits"])
    weights.close(output.predictions["probabilities"], expected["probs"])
    weights.close(output.loss, expected["loss"])
    weights.close(of_table, case["grad"][TABLE])
    recurrent = weights.gates(case["grad"]["_encoder._module.weight_hh_l0"]).T
    weights.close(of_params["encoder"]["forward"]["kernel"][-4:], recurrent)


def test_padding_changes_nothing():
    checks.padding_changes_nothing(ESIM(SMALL), problem(2), 3)


def test_permuting_the_batch_permutes_its_outputs():
    checks.permuting_permutes(ESIM(SMALL), problem(2))


def test_every_parameter_learns():
    checks.every_parameter_learns(ESIM(SMALL), problem(2))


@pytest.mark.parametrize("on", ["dropout", "attention_dropout"])
def test_each_dropout_acts_in_training_only(on):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, on: 0.5}
    checks.dropout_acts_in_training_only(ESIM(SNLIModel(**SIZES, **rates, matrix_penalty=0.0)), problem())


def test_matrices_are_penalized_in_training_only():
    given = problem()
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    plain, penalized = (ESIM(SNLIModel(**SIZES, **rates, matrix_penalty=rate)) for rate in (0.0, 0.01))
    variables = checks.init(plain, given)

    def loss(model, deterministic):
        texts, arrays = given
        return jax.jit(lambda v: model.apply(v, *texts, arrays, deterministic=deterministic).loss)(variables)

    matrices = [leaf for leaf in jax.tree.leaves(variables["params"]) if leaf.ndim == 2]
    assert len(matrices) == 7  # four of the LSTMs' directions, three of dense layers
    squares = sum(float((matrix**2).sum()) for matrix in matrices)
    assert_allclose(loss(penalized, False) - loss(plain, False), 0.01 * squares, rtol=1e-4)
    assert loss(penalized, True) == loss(plain, True)


def test_loss_at_the_start_is_that_of_chance():
    model, given = ESIM(SMALL), problem(lengths=[[5] * 40, [4] * 40])
    output, _ = checks.run(model, checks.init(model, given), given)
    assert_allclose(output.loss, np.log(3), rtol=0.15)


# the dense layers behind the pooling
OUTPUT = 720_300 + 903


@pytest.mark.parametrize(
    ("size", "elmo", "expected"),
    [
        # Encoder, projection, composition, output; PyTorch's second bias of an LSTM (2,400 per layer) is not counted.
        (300, 0, 1_442_400 + 720_300 + 1_442_400 + OUTPUT),  # 4.33 M
        (1024, 0, 3_180_000 + 720_300 + 1_442_400 + OUTPUT),  # AllenNLP's: 6.07 M with the second biases
        (1324, 1024, 3_900_000 + 1_949_100 + 1_442_400 + OUTPUT),  # the paper's: 8.0 M
    ],
)
def test_parameter_counts(size, elmo, expected):
    texts, label = (checks.shapes(size, elmo),) * 2, {"label": jax.ShapeDtypeStruct((2,), np.int32)}
    assert checks.count(ESIM(SNLIModel()), texts, label) == expected


def test_settings():
    config = SNLIModel(attention_dropout=0.0)
    assert from_dict(to_dict(config), SNLIModel) == config
