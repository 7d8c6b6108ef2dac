"""Tests perplexities at the ends of their range."""

import json
import math

import pytest

from elmo_jax.runs.perplexity import exp

pytestmark = pytest.mark.quick


def test_a_perplexity_can_be_written_to_json():
    assert exp(math.log(83.4)) == math.exp(math.log(83.4))
    for loss in (700.0, 1e6, math.inf):
        assert json.loads(json.dumps(exp(loss), allow_nan=False)) > 1e300
    assert math.isnan(exp(math.nan))
