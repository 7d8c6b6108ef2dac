"""The tagger against AllenNLP's, and what holds for every task model."""

import itertools

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from elmo_jax.checkpoints.layout import flatten
from elmo_jax.errors import UserError
from elmo_jax.settings import from_dict, to_dict
from elmo_jax.tasks.core.config import CharactersConfig
from elmo_jax.tasks.core.inputs import CharCNN
from elmo_jax.tasks.core.task import Embedded
from elmo_jax.tasks.layers.crf import allowed_transitions
from elmo_jax.tasks.ner.task import NERModel, Tagger
from tests.tasks import checks, weights
from tests.tasks.oracle_cases import each_case

LABELS = ("O", *(f"{letter}-{kind}" for kind in ("PER", "LOC") for letter in "BIUL"))
CONLL = ("O", *(f"{letter}-{kind}" for kind in ("PER", "LOC", "ORG", "MISC") for letter in "BIUL"))
SMALL = NERModel(layers=(5, 3))
ALLENNLP = NERModel(layers=(200, 200))  # the sizes of its configuration `ner_elmo`


def problem(output=0, lengths=(4, 6, 1, 3), steps=6):
    words = checks.text(0, lengths, steps, 7, output)
    return (words,), {"tags": np.random.default_rng(1).integers(0, len(LABELS), words.mask.shape)}


def import_object(case):
    """Converts the parameters of the tagger, of its character CNN and of its word table."""
    params = case["param"]
    embedder = "text_field_embedder.token_embedder_"
    characters = f"{embedder}token_characters"
    convolution = f"{characters}._encoder._module.conv_layer_0"
    tagger = {
        "encoder": {f"layer_{i}": weights.bilstm(params, "encoder._module", i) for i in range(2)},
        "tag": weights.dense(params, "tag_projection_layer._module"),
        "crf": {"transitions": params["crf.transitions"]},
    }
    char_cnn = {
        "embedding": params[f"{characters}._embedding._module.weight"],
        "filter_0_kernel": params[f"{convolution}.weight"].transpose(2, 1, 0),
        "filter_0_bias": params[f"{convolution}.bias"],
    }
    return tagger, char_cnn, params[f"{embedder}tokens.weight"]


@each_case("ner.npz")
def test_is_the_oracle(case):
    tagger, char_cnn, table = import_object(case)
    given = case["input"]
    ids = given["token_characters"]
    characters = jax.jit(CharCNN(11, CharactersConfig(3, ((3, 4),), ids.shape[-1])).apply)({"params": char_cnn}, ids)
    characters = weights.with_windows_of_padding(characters, ids, char_cnn)
    embedded = np.concatenate([characters, table[given["tokens"]]], -1)
    weights.close(embedded, case["output"]["embedded"])
    mask = given["mask"] > 0
    model = Tagger(NERModel(layers=(5, 5)), tuple(given["labels"]))
    words = (Embedded(embedded, mask),), {"tags": given["tags"]}
    output, kept = checks.intermediates(model, tagger, words)
    weights.close(kept["encoded"][0], case["output"]["encoded"])
    weights.close(np.where(mask[..., None], kept["logits"][0], case["output"]["logits"]), case["output"]["logits"])
    weights.close(output.loss, case["output"]["loss"])
    np.testing.assert_array_equal(output.predictions["tags"], case["output"]["viterbi_tags"])
    weights.close(
        checks.gradient(model, {"params": tagger}, words)["crf"]["transitions"], case["grad"]["crf.transitions"]
    )


def test_padding_changes_nothing():
    checks.padding_changes_nothing(Tagger(SMALL, LABELS), problem(2), 3)


def test_permuting_the_batch_permutes_its_outputs():
    checks.permuting_permutes(Tagger(SMALL, LABELS), problem(2))


def test_every_parameter_learns():
    checks.every_parameter_learns(Tagger(SMALL, LABELS), problem(2))


def test_dropout_acts_in_training_only():
    checks.dropout_acts_in_training_only(Tagger(SMALL, LABELS), problem())


def legal_tags(allowed, mask):
    """Random tags that the encoding allows, from the end of a row to its start."""
    random, end = np.random.default_rng(2), len(allowed) - 1
    tags = np.full(mask.shape, -1)
    for row, length in enumerate(mask.sum(1)):
        starts = [np.flatnonzero(allowed[end - 1])] + [np.arange(end - 1)] * (length - 1)
        while not tags[row, 0] >= 0:
            path = [random.choice(choices) for choices in starts]
            if all(allowed[pair] for pair in itertools.pairwise([*path, end])):
                tags[row, :length] = path
    return tags


def test_predictions_obey_the_encoding_and_the_loss_does_not():
    (words,), arrays = problem()
    model = Tagger(SMALL, LABELS)
    output, _ = checks.run(model, checks.init(model, ((words,), arrays)), ((words,), arrays))
    allowed, number = allowed_transitions(LABELS, "BIOUL"), len(LABELS)
    for tags in np.asarray(output.predictions["tags"]):
        path = [number, *tags[tags >= 0], number + 1]
        assert all(allowed[pair] for pair in itertools.pairwise(path))
    assert np.isfinite(output.loss)  # the score of random tags, which the encoding forbids


def test_loss_at_the_start_is_that_of_chance():
    (words,), arrays = problem(lengths=[9] * 20, steps=9)
    given = (words.replace(vectors=0.1 * words.vectors),), arrays
    model = Tagger(SMALL, LABELS)
    output, _ = checks.run(model, checks.init(model, given), given)
    assert_allclose(output.loss / words.mask.sum(), np.log(len(LABELS)), rtol=0.1)


@pytest.mark.parametrize(
    ("config", "elmo", "expected"),
    [
        # The LSTMs, the dense layer (17 tags) and the CRF. PyTorch's second bias of an LSTM is not counted here, nor is
        # the character CNN (6,272 and its embedding), which belongs to the input.
        (NERModel(), 0, 606_400 + 400_800 + 3_417 + 289),  # the paper's 1.01 M
        (NERModel(), 1024, 2_244_800 + 400_800 + 3_417 + 289),  # its 2.65 M
        (ALLENNLP, 0, 606_400 + 961_600 + 6_817 + 289),  # 1.58 M
        (ALLENNLP, 1024, 2_244_800 + 961_600 + 6_817 + 289),  # 3.22 M with the character CNN
    ],
)
def test_parameter_counts(config, elmo, expected):
    tags = {"tags": jax.ShapeDtypeStruct((2, 3), np.int32)}
    assert checks.count(Tagger(config, CONLL), (checks.shapes(178 + elmo),), tags) == expected


def test_elmo_after_the_first_layer_enters_there():
    (words,), arrays = problem()
    given = (words.replace(after_first=problem(2)[0][0].output),), arrays
    model = Tagger(SMALL, LABELS)
    with_elmo, without = (
        {path: leaf.shape for path, leaf in flatten(checks.init(model, p)["params"]).items()}
        for p in (given, problem())
    )
    changed = {path: shape for path, shape in with_elmo.items() if shape != without[path]}
    assert changed == {f"encoder/layer_1/{d}/kernel": (2 * 5 + 2 + 3, 4 * 3) for d in ("forward", "backward")}
    checks.every_parameter_learns(model, given)
    checks.padding_changes_nothing(model, given, 3)


def test_output_elmo_enters_behind_the_lstm():
    tags = {"tags": jax.ShapeDtypeStruct((2, 3), np.int32)}
    without, with_elmo = (checks.count(Tagger(NERModel(), CONLL), (checks.shapes(178, e),), tags) for e in (0, 1024))
    assert with_elmo - without == 1024 * 17


def test_settings():
    assert from_dict(to_dict(ALLENNLP), NERModel) == ALLENNLP
    with pytest.raises(UserError, match=r"config\.layers: expected one or more sizes"):
        from_dict({"layers": []}, NERModel)
    with pytest.raises(UserError, match="encoding"):
        from_dict({"encoding": "IOB1"}, NERModel)
