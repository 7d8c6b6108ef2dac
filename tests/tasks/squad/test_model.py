"""The SQuAD model against document-qa's, step by step, its size, and what it must not depend on."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.squad.model import SpanFinder, SquadModel
from tests.tasks import checks
from tests.tasks.oracle_cases import each_case
from tests.tasks.squad import from_document_qa
from tests.tasks.squad.spans import spans_of_scores

STEPS = {  # The name here of each step of document-qa, by its number.
    "00": "encoder",
    "02": "attention",
    "03": "joined",
    "04": "self_encoder",
    "05": "self_attention",
    "06": "self_joined",
    "07": "residual",
    "08": "start",
    "09": "end",
}


def mixes(case, side, mask):
    """Returns ELMo at the input and at the output of one text."""
    layers, actual = case["input"][f"{side}_lm"], []
    for position in ("weight_embed_lm", "weight_lm"):
        weights = np.exp(case["param"][f"{position}/layer_0/ELMo_W_0"])
        mixed = np.einsum("l,bltd->btd", weights / weights.sum(), layers)
        actual.append(mixed * case["param"][f"{position}/layer_0/ELMo_gamma_0"] * mask[..., None])
    return np.float32(actual)


@each_case("squad.npz", "both")
def test_document_qa_with_elmo(case):
    check_steps_logits_loss_gradients_and_spans(case)


@each_case("squad.npz", "none", but=("input/context_lm", "input/question_lm"))
def test_document_qa_without_elmo(case):
    check_steps_logits_loss_gradients_and_spans(case)


def check_steps_logits_loss_gradients_and_spans(case):
    given, expected = case["input"], case["output"]
    masks, elmo = {}, {}
    for side in ("context", "question"):
        masks[side] = np.arange(given[side].shape[1]) < given[f"{side}_length"][:, None]
        elmo[side] = mixes(case, side, masks[side]) if case.name == "both" else None
    params = from_document_qa.squad(case["param"])
    model = SpanFinder(SquadModel(units=params["start"]["recurrent"].shape[1]))

    def text(side, words):
        if elmo[side] is None:
            return Embedded(words, masks[side])
        return Embedded(jnp.concatenate([words, elmo[side][0]], -1), masks[side], elmo[side][1])

    @jax.jit
    def run(params, context, question):
        def loss(context, question):
            output, kept = model.apply(
                {"params": params},
                text("question", question),
                text("context", context),
                {"answers": given["answer"]},
                capture_intermediates=True,
                mutable=["intermediates"],
            )
            return output.loss, (output.predictions, kept["intermediates"])

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(context, question)

    (loss, (predictions, kept)), (d_context, d_question) = run(params, given["context"], given["question"])
    close = partial(assert_allclose, rtol=0, atol=1e-5)
    mask = masks["context"]
    outputs = {name: layer["__call__"] for name, layer in kept.items() if isinstance(layer, dict)}
    joined, residual = (np.maximum(outputs[name][0], 0) for name in ("joined", "self_joined"))
    outputs |= {"joined": [joined], "self_joined": [residual], "residual": [joined + residual]}
    for key, value in case["step"].items():
        name, call, real = ("encoder", 1, masks["question"]) if key[:2] == "01" else (STEPS[key[:2]], 0, mask)
        close(np.asarray(outputs[name][call])[real], value[real])
    for side, logits in zip(("start", "end"), kept["logits"][0], strict=True):
        assert_allclose(logits, expected[f"{side}_logits"], rtol=1e-5, atol=1e-5)
        close(predictions[side], expected[f"{side}_probs"])
    close(loss, expected["loss"])
    close(d_context, case["grad_input"]["context"])
    close(d_question, case["grad_input"]["question"])
    for key in expected:
        if key.startswith("best_span_"):
            bound = int(key.removeprefix("best_span_"))
            spans, scores = spans_of_scores(expected["start_logits"], expected["end_logits"], bound)
            assert_array_equal(spans, expected[key])
            close(scores, expected[f"best_score_{bound}"])


@cache
def small():
    """Returns a model with ELMo at both places, its parameters, and a batch."""
    rng = np.random.default_rng(3)
    model = SpanFinder(SquadModel(units=3, dropout=0.3))

    def text(lengths):
        mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
        vectors = rng.normal(size=(*mask.shape, 4)).astype(np.float32)
        return Embedded(vectors, mask, (rng.normal(size=(*mask.shape, 5)) * mask[..., None]).astype(np.float32))

    batch = (text([3, 5, 2]), text([9, 4, 6]), {"answers": np.array([[2, 3], [0, 3], [5, 5]])})
    params = jax.jit(model.init)(jax.random.key(0), *batch)["params"]
    return model, jax.tree.map(np.asarray, params), batch


@partial(jax.jit, static_argnums=0)
def run(model, params, batch):
    return model.apply({"params": params}, *batch)


def test_rows_do_not_depend_on_padding_or_on_each_other():
    model, params, batch = small()
    predictions = run(model, params, batch).predictions
    pick = np.array([2, 0, 1])
    permuted = run(model, params, jax.tree.map(lambda x: x[pick], batch)).predictions
    for key in predictions:
        assert_allclose(permuted[key], np.asarray(predictions[key])[pick], rtol=1e-5, atol=1e-5)
    # The second row is without the padding of the others, next to a row without words that only fills up the batch.
    question, context, arrays = jax.tree.map(lambda x: np.concatenate([x[1:2], np.zeros_like(x[1:2])]), batch)
    context, question = jax.tree.map(lambda x: x[:, :4], context), jax.tree.map(lambda x: x[:, :5], question)
    loss, alone = run(model, params, (question, context, arrays))
    for key, value in alone.items():
        whole = np.asarray(predictions[key])[1]
        assert_allclose(value[0], whole[:4] if whole.size > 2 else whole, atol=1e-5)
    first, last = batch[2]["answers"][1]
    expected = -np.log(alone["start"][0][first]) - np.log(alone["end"][0][last])
    assert_allclose(loss, expected, rtol=1e-5)


def test_all_parameters_have_gradients_and_the_first_loss_is_that_of_chance():
    model, params, batch = small()

    def first_loss(params):
        return model.apply({"params": params}, *batch).loss

    loss, gradient = jax.jit(jax.value_and_grad(first_loss))(params)
    assert abs(loss - 2 * np.mean([math.log(9), math.log(4), math.log(6)])) < 0.2
    # A softmax does not depend on a constant added to all scores.
    idle = [gradient[name].pop("bias") for name in ("start_logits", "end_logits")]
    idle.append(gradient["attention"]["scores"].pop("bias"))
    assert all(np.all(np.abs(leaf) < 1e-6) for leaf in idle)
    for path, leaf in jax.tree.leaves_with_path(gradient):
        assert np.all(np.isfinite(leaf)) and np.any(leaf), path


def test_dropout_acts_in_training_only():
    model, _, (question, context, arrays) = small()
    checks.dropout_acts_in_training_only(model, ((question, context), arrays))


@pytest.mark.parametrize(("inputs", "elmo", "millions"), [(400, 0, 1.03), (1424, 1024, 2.32)])
def test_parameters_of_the_paper(inputs, elmo, millions):
    """The counts of 1.04 and 2.34 million include the characters: 10,100 in filters, and 20 for each of about 100."""
    output = jnp.zeros((1, 2, elmo)) if elmo else None
    text = Embedded(jnp.zeros((1, 2, inputs)), jnp.ones((1, 2), bool), output)
    arrays = {"answers": jnp.zeros((1, 2), int)}
    shapes = jax.eval_shape(SpanFinder(SquadModel()).init, jax.random.key(0), text, text, arrays)["params"]
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6, 2) == millions
