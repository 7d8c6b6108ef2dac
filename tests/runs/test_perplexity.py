"""Tests perplexities at the ends of their range."""

import json
import math

import pytest
from etils import epath

from elmo_jax.errors import UserError
from elmo_jax.runs.perplexity import Perplexity, exp, read_evaluations, write_evaluations

pytestmark = pytest.mark.quick


def test_evaluations_are_read_back_with_their_sources(tmp_path):
    sources = {name: Perplexity(4.0, 9.0, tokens, 0.5) for name, tokens in (("news", 3), ("perplexity", 7))}
    measured = {
        ("heldout", 0): Perplexity(4.0, 9.0, 10, 0.25, sources),
        ("original", 0): Perplexity(0.1 + 0.2, None, 10, 0.25),
        ("heldout", 20): Perplexity(2.0, 3.0, 10, 0.25),
    }
    run = epath.Path(tmp_path)
    assert read_evaluations(run) == {}
    write_evaluations(run, measured)
    assert read_evaluations(run) == measured and list(read_evaluations(run)) == list(measured)
    assert list(read_evaluations(run, last_step=19)) == [("heldout", 0), ("original", 0)]
    assert read_evaluations(run, last_step=20) == measured
    assert measured["heldout", 0].as_metrics("heldout")["heldout/news/perplexity/average"] == 6.0
    path = tmp_path / "evaluations.json"
    path.write_text(path.read_text().replace("2.0", "2.5"))
    with pytest.raises(UserError, match=r"evaluations\.json: damaged or edited; restore it, or delete it to measure"):
        read_evaluations(run)


def test_a_perplexity_can_be_written_to_json():
    assert exp(math.log(83.4)) == math.exp(math.log(83.4))
    for loss in (700.0, 1e6, math.inf):
        assert json.loads(json.dumps(exp(loss), allow_nan=False)) > 1e300
    assert math.isnan(exp(math.nan))
