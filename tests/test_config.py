"""Settings: defaults, experiment files, overrides, and what is said of a mistake."""

import dataclasses
import json
import math
from typing import Literal, get_origin

import pytest

from elmo_jax.config import CHANGEABLE, Config, ModelConfig, default_config
from elmo_jax.config_file import load_config
from elmo_jax.errors import UserError
from elmo_jax.settings import differences, from_dict, to_dict, walk
from elmo_jax.training.setup import rows_warning, warmup_warning

pytestmark = pytest.mark.quick

EXPERIMENT = """
from elmo_jax.config import default_config

def get_config():
    config = default_config()
    config.train.batch_size = 12
    config.model.char_cnn.filters = ((1, 4), (2, 8))
    return config
"""


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(EXPERIMENT)
    return path


def test_a_file_and_overrides(experiment):
    config = load_config(
        experiment,
        ["--config.train.optimizer.learning_rate=1", "--config.train.unroll_steps=7", "--config.data.corpus=data/x"],
    )
    assert config.train.batch_size == 12 and config.train.unroll_steps == 7 and config.data.corpus == "data/x"
    assert config.train.optimizer.learning_rate == 1.0
    assert config.model.char_cnn.filters == ((1, 4), (2, 8))
    assert config.train.negatives == Config().train.negatives
    filters = load_config(experiment, ["--config.model.char_cnn.filters=((3, 5),)"])
    assert filters.model.char_cnn.filters == ((3, 5),)


def test_a_mixture(experiment):
    experiment.write_text(EXPERIMENT.replace("train.batch_size = 12", 'data.mixture = (("a", 2.5),)'))
    assert load_config(experiment).data.mixture == (("a", 2.5),)
    config = load_config(experiment, ["--config.data.mixture=(('news', 2), ('wiki', 0.5))"])
    assert config.data.mixture == (("news", 2.0), ("wiki", 0.5))
    assert from_dict(json.loads(json.dumps(to_dict(config))), Config) == config
    broken = dataclasses.replace(config, data=dataclasses.replace(config.data, mixture=(("news", math.nan),)))
    with pytest.raises(UserError, match="config.data.mixture: expected each to be a number of at least 0.*, got nan"):
        from_dict(to_dict(broken), Config)


def test_of_a_setting_that_is_given_twice_the_last_value_counts(experiment):
    filters, size = "--config.model.char_cnn.filters=", "--config.train.batch_size="
    config = load_config(experiment, [f"{filters}((3, 5),)", f"{size}3", f"{filters}((2, 6),)", f"{size}4"])
    assert config.model.char_cnn.filters == ((2, 6),) and config.train.batch_size == 4


def test_survives_json():
    config = from_dict(default_config(), Config)
    assert config == Config()
    assert from_dict(json.loads(json.dumps(to_dict(config))), Config) == config
    assert not differences(to_dict(config), json.loads(json.dumps(to_dict(config))))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["--config.train.batch_sise=3"], ["--config.train.batch_sise=3", "did you mean 'batch_size'?"]),
        (["--config.tain.batch_size=3"], ["--config.tain.batch_size=3", "did you mean 'train'?"]),
        (["--config.train.zzz=3"], ["zzz", "elmo-jax settings"]),
        (["--config.train.batch_size=many"], ["batch_size", "many"]),
        (["--config.train.batch_size=0"], ["config.train.batch_size", "at least 1", "0"]),
        (["--config.train.precision=fp8"], ["config.train.precision", "'bfloat16'", "'fp8'"]),
        (["--config.train.carry=never"], ["config.train.carry", "'endless'", "'never'"]),
        (["--config.train.optimizer.name=adam"], ["softmax_learning_rate", "adam"]),
        (["--config.train.optimizer.learning_rate=0.0"], ["learning_rate", "above 0"]),
        (["--config.model.lstm.cells=8"], ["config.model.lstm.cells", "at least the projection, 512"]),
        (["--config.model.dropout=1.0"], ["config.model.dropout"]),
        (["--config.checkpoint.minutes=-1"], ["config.checkpoint.minutes", "at least 0", "-1"]),
        (["--config.train.log_seconds=-1"], ["config.train.log_seconds", "at least 0", "-1"]),
        (["--config.model.char_cnn.filters=((51, 4),)"], ["filters", "(51, 4)", "1 to 50"]),
        (["--config.model.char_cnn.max_characters=200"], ["max_characters", "127"]),
        (["--config.data.mixture=(('news',-1.0),)"], ["config.data.mixture", "at least 0", "-1"]),
        (["--config.data.mixture=(('news',101),)"], ["config.data.mixture", "at most 100", "101"]),
        (["--config.data.mixture=('news',2.0)"], ["config.data.mixture", "pairs (name, weight)"]),
        (["--config.data.mixture=((2.0,'news'),)"], ["config.data.mixture", "pairs (name, weight)"]),
        (["--config.data.mixture=(('news',2.0),('news',1.0))"], ["config.data.mixture", "'news' is listed twice"]),
        (["--config.model.char_cnn.activation=gelu"], ["activation", "'relu'", "'gelu'"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(experiment, overrides, words):
    with pytest.raises(UserError) as caught:
        load_config(experiment, overrides)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_config(: pass", ["mine.py", "SyntaxError"]),
        ("import nothing_of_that_name", ["mine.py", "nothing_of_that_name"]),
        ("x = 1", ["mine.py", "get_config"]),
        ("def get_config(): return {}", ["mine.py", "ConfigDict"]),
        (EXPERIMENT.replace("batch_size = 12", "batchsize = 12"), ["batchsize", "batch_size"]),
        (EXPERIMENT.replace("((1, 4), (2, 8))", "(1, 4)"), ["filters", "(1, 4)"]),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, words):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_model_has_both_directions_or_the_forward_one(experiment):
    for given, expected in (("forward", ("forward",)), ("forward,backward", ("forward", "backward"))):
        assert load_config(experiment, [f"--config.model.directions={given}"]).model.directions == expected
    for given in ("", "backward", "backward,forward"):
        with pytest.raises(UserError, match=r"directions: expected \('forward', 'backward'\) or \('forward',\), got"):
            load_config(experiment, [f"--config.model.directions={given}"])


def test_no_such_file(tmp_path):
    with pytest.raises(UserError, match="no such file .*nothing.py"):
        load_config(tmp_path / "nothing.py")


def test_unknown_keys_and_wrong_types_of_a_stored_config():
    with pytest.raises(UserError, match=r"config.lstm.cels: no such setting; did you mean 'cells'\?"):
        from_dict({"lstm": {"cels": 3}}, ModelConfig)
    with pytest.raises(UserError, match="config.dropout: expected float, got 'high'"):
        from_dict({"dropout": "high"}, ModelConfig)


def test_what_may_change_between_launches_exists():
    assert set(CHANGEABLE) <= {key for key, *_ in walk(Config())}
    assert "train.batch_size" not in CHANGEABLE and "train.optimizer.learning_rate" not in CHANGEABLE


def test_every_setting_says_what_it_is():
    for key, value, field, kind in walk(Config()):
        assert field.metadata["sentence"], key
        assert type(value) in (int, float, bool, tuple) or kind is str or get_origin(kind) is Literal, key


def test_a_warmup_that_a_run_does_not_end_is_said(experiment):
    arguments = ["--config.train.optimizer.schedule=warmup_cosine", "--config.train.optimizer.warmup_steps=500"]
    config = load_config(experiment, arguments)
    printed = warmup_warning(config, 120)
    assert printed and "500 steps" in printed and "120 steps" in printed and "24.0% of their peak" in printed
    assert warmup_warning(config, 501) is None and warmup_warning(config, 0) is None
    assert warmup_warning(load_config(experiment, []), 120) is None


class Text:
    """A corpus of a hundred blocks."""

    def tokens(self, split):
        return 160_000

    def blocks(self, split):
        return range(100)


def test_too_many_rows_for_a_small_text_are_said(experiment):
    few, many = (load_config(experiment, [f"--config.train.batch_size={rows}"]) for rows in (32, 384))
    steps = [math.ceil(160_000 / config.train.tokens_per_step) for config in (few, many)]
    assert rows_warning(few, Text(), steps[0]) is None
    printed = rows_warning(many, Text(), steps[1])
    assert "each of the 384 rows reads 0.26 of the 100 blocks" in printed
    assert rows_warning(many, Text(), steps[1] - 1) is None  # less than an epoch


def test_a_warmup_without_effect_is_said(experiment):
    config = load_config(experiment, ["--config.train.optimizer.warmup_steps=500"])
    assert "500 has no effect, since config.train.optimizer.schedule is constant" in warmup_warning(config, 1000)
