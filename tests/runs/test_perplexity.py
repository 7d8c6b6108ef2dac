"""Tests perplexities at the ends of their range."""

import json
import math

import pytest

from elmo_jax.runs.perplexity import Perplexity, exp

pytestmark = pytest.mark.quick


def test_metrics_are_read_back_with_their_sources():
    sources = {name: Perplexity(4.0, 9.0, tokens, 0.5) for name, tokens in (("news", 3), ("perplexity", 7))}
    found = Perplexity(4.0, 9.0, 10, 0.25, sources)
    record = found.as_metrics("heldout")
    assert record["heldout/news/perplexity/average"] == 6.0 and record["heldout/news/tokens"] == 3
    assert Perplexity.of_metrics({"step": 3, **record, "whole/old/perplexity/average": 1.0}, "heldout") == found
    assert Perplexity.of_metrics(Perplexity(4.0, 9.0, 10, 0.25).as_metrics("heldout"), "heldout").sources == {}


def test_a_perplexity_can_be_written_to_json():
    assert exp(math.log(83.4)) == math.exp(math.log(83.4))
    for loss in (700.0, 1e6, math.inf):
        assert json.loads(json.dumps(exp(loss), allow_nan=False)) > 1e300
    assert math.isnan(exp(math.nan))
