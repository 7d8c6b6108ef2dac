"""Checks that hold for all task models; a problem is `(texts, arrays)` for `model.apply(variables, *texts, arrays)`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_allclose

from elmo_jax.tasks.core.task import Embedded


def text(seed, lengths, steps, size, output=0):
    """Returns random words; the values at padding are not zero, because they must not matter."""
    random = np.random.default_rng(seed)
    mask = np.arange(steps) < np.asarray(lengths)[:, None]

    def normal(width):
        return random.normal(size=(len(lengths), steps, width)).astype(np.float32)

    return Embedded(normal(size), mask, normal(output) if output else None)


def init(model, problem, seed=0):
    texts, arrays = problem
    return initializer(model)(jax.random.key(seed), *texts, arrays)


@functools.cache
def initializer(model):
    return jax.jit(model.init)


def run(model, variables, problem):
    """Returns the `TaskOutput` and the logits."""
    output, kept = intermediates(model, variables["params"], problem)
    return output, kept["logits"][0]


@functools.cache
def compiled(model):
    """Returns the evaluation of a model, and the gradient of its loss; kept, so that tests share what is compiled."""

    def evaluate(params, texts, arrays):
        return model.apply({"params": params}, *texts, arrays, mutable=["intermediates"])

    def loss(params, texts, arrays):
        return model.apply({"params": params}, *texts, arrays).loss

    return jax.jit(evaluate), jax.jit(jax.grad(loss))


def intermediates(model, params, problem):
    output, kept = compiled(model)[0](params, *problem)
    return output, kept.get("intermediates", {})


def gradient(model, variables, problem):
    return compiled(model)[1](variables["params"], *problem)


def row(problem, index):
    """Returns one row without the others and without padding."""
    texts, arrays = problem
    ends = [int(t.mask[index].sum()) for t in texts]
    cut = [jax.tree.map(lambda x, end=end: x[index : index + 1, :end], t) for t, end in zip(texts, ends, strict=True)]
    return tuple(cut), {
        k: v[index : index + 1, : ends[0]] if v.ndim > 1 else v[index : index + 1] for k, v in arrays.items()
    }


def wider(problem, rows, steps):
    """Adds rows without words and more padding, with ones among the vectors and -1 among the tags and labels."""

    def pad(x, axes):
        x = np.asarray(x)
        widths = [(0, rows), (0, steps)][:axes] + [(0, 0)] * (x.ndim - axes)
        fill = False if x.dtype == bool else -1 if x.dtype.kind == "i" else 1.0
        return np.pad(x, widths, constant_values=fill)

    texts, arrays = problem
    texts = tuple(jax.tree.map(lambda x: pad(x, 2), t) for t in texts)
    return texts, {k: pad(v, min(v.ndim, 2)) for k, v in arrays.items()}


def padding_changes_nothing(model, problem, index):
    """A row alone equals the row in the batch; empty rows and more padding change neither loss nor gradients."""
    variables = init(model, problem)
    batch, logits = run(model, variables, problem)
    alone, own = run(model, variables, row(problem, index))
    steps = own.shape[1] if own.ndim == 3 else None
    assert_allclose(own[0], logits[index, :steps], atol=1e-5)
    for name, value in alone.predictions.items():
        expected = np.asarray(batch.predictions[name])[index]
        assert_allclose(value[0], expected if steps is None else expected[:steps], atol=1e-5)
    more = wider(problem, 2, 3)
    padded, _ = run(model, variables, more)
    assert_allclose(padded.loss, batch.loss, rtol=1e-5)
    before, after = gradient(model, variables, problem), gradient(model, variables, more)
    jax.tree.map(lambda a, b: assert_allclose(a, b, atol=1e-5 * max(1, np.abs(b).max())), after, before)


def permuting_permutes(model, problem):
    variables = init(model, problem)
    rows = len(problem[0][0].mask)
    order = np.random.default_rng(5).permutation(rows)
    assert (order != np.arange(rows)).any()
    batch, logits = run(model, variables, problem)
    other, permuted = run(model, variables, jax.tree.map(lambda x: x[order], problem))
    assert_allclose(permuted, logits[order], atol=1e-5)
    assert_allclose(other.loss, batch.loss, rtol=1e-5)


def every_parameter_learns(model, problem, but=()):
    """Every parameter has a gradient, but for those that cannot change the outputs."""
    for path, value in jax.tree.leaves_with_path(gradient(model, init(model, problem), problem)):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(value).all() and (np.abs(value).max() > 1e-7) == (name not in but), name


def dropout_acts_in_training_only(model, problem):
    variables = init(model, problem)
    texts, arrays = problem

    @jax.jit
    def dropped(key):
        return model.apply(variables, *texts, arrays, deterministic=False, rngs={"dropout": key}).loss

    plain = intermediates(model, variables["params"], problem)[0].loss  # no key is needed
    first, again, other = (dropped(jax.random.key(seed)) for seed in (1, 1, 2))
    assert first == again != other and plain not in (first, other)


def count(model, texts, arrays):
    """The number of parameters; nothing is allocated."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *texts, arrays)["params"]
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(shapes))


def shapes(size, output=0):
    """Returns the shapes of a text with the sizes of the paper."""

    def vectors(width):
        return jax.ShapeDtypeStruct((2, 3, width), jnp.float32)

    return Embedded(vectors(size), jax.ShapeDtypeStruct((2, 3), bool), vectors(output) if output else None)
