"""The reader of compiled programs, against programs whose work is known, compiled for CPUs and for a TPU."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec, SingleDeviceSharding

from elmo_jax.aot.cost import cost_of
from elmo_jax.aot.hlo import Array, parse, parse_arrays
from elmo_jax.aot.step import find_target
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.training.step import AXIS
from tests.aot.products import products

# A program for a TPU that an earlier run has kept cannot be loaded here, and is compiled again.
pytestmark = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")


@pytest.fixture(scope="module", params=["cpu:1", "v5e:2x2"])
def device(request):
    return find_target(request.param).devices[0]


def program(function, device, *shapes):
    sharding = SingleDeviceSharding(device)
    given = [jax.ShapeDtypeStruct(dims, dtype, sharding=sharding) for dims, dtype in shapes]
    return parse(jax.jit(function).lower(*given).compile().as_text())


def flops(function, device, *shapes, **options):
    return products(program(function, device, *shapes), **options)[0]


def scanned(length, body=lambda x, w: x @ w):
    return lambda x, w: lax.scan(lambda x, _: (jnp.tanh(body(x, w)), None), x, None, length=length)[0]


SQUARE = (((64, 128), jnp.float32), ((128, 128), jnp.float32))
ONE = 2 * 64 * 128 * 128


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w: x @ w, ONE),
        (scanned(7), 7 * ONE),
        (scanned(5, scanned(3)), 15 * ONE),
        (lambda x, w: lax.fori_loop(4, 10, lambda i, x: jnp.tanh(x @ w) * i, x), 6 * ONE),
        (lambda x, w: lax.scan(lambda x, y: (jnp.tanh(x @ w) + y, x), x, jnp.ones(9), reverse=True), 9 * ONE),
        (jax.grad(lambda x, w: scanned(7)(x, w).sum(), argnums=1), 3 * 7 * ONE),
    ],
    ids=["once", "scan", "nested", "from 4 to 10", "backwards", "gradient"],
)
def test_loops_count_as_often_as_they_run(function, expected, device):
    assert flops(function, device, *SQUARE) == expected


def test_a_batch_of_products(device):
    """A TPU's compiler makes a convolution of it, with holes between the numbers: they are no work."""
    shapes = ((3, 64, 256), jnp.bfloat16), ((3, 256, 128), jnp.bfloat16)
    assert flops(lambda a, b: a @ b, device, *shapes) == 2 * 3 * 64 * 256 * 128


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"padding": "VALID"}, 28 * 3),
        ({"padding": "SAME"}, 28 * 3 + 2 * 2),  # the outermost windows reach past the end by one
        ({"padding": "VALID", "window_strides": (2,)}, 14 * 3),
        ({"padding": "VALID", "rhs_dilation": (4,)}, 22 * 3),
    ],
    ids=str,
)
def test_convolutions(options, places, device):
    def convolve(x, w):
        given = {"window_strides": (1,), "dimension_numbers": ("NWC", "WIO", "NWC")} | options
        return lax.conv_general_dilated(x, w, **given)

    shapes = ((8, 30, 16), jnp.float32), ((3, 16, 32), jnp.float32)
    assert flops(convolve, device, *shapes) == 2 * 8 * places * 16 * 32


def test_a_loop_of_unknown_length_is_assumed(device):
    def loop(x, w):
        return lax.while_loop(lambda x: x.sum() > 0, lambda x: jnp.tanh(x @ w), x)

    assert flops(loop, device, *SQUARE) == ONE
    assert flops(loop, device, *SQUARE, assume=lambda *_: 11.0) == 11 * ONE


def test_a_branch_is_taken_as_often_as_assumed(device):
    def either(x, w):
        return lax.scan(lambda x, y: (lax.cond(y > 0, lambda: jnp.tanh(x @ w), lambda: x), None), x, x[:8, 0])[0]

    assert flops(either, device, *SQUARE) == 8 * ONE
    assert flops(either, device, *SQUARE, assume=lambda *_: 0.25) == 2 * ONE


def test_products_of_full_precision_are_several_of_bfloat16():
    device = find_target("v5e:2x2").devices[0]
    for precision, passes in ((lax.Precision.HIGHEST, 6), (lax.Precision.DEFAULT, 1)):
        counted = products(program(lambda x, w, p=precision: jnp.dot(x, w, precision=p), device, *SQUARE))
        assert counted == (ONE, passes * ONE)


def test_a_scan_reads_a_slice_a_turn_and_writes_one():
    device = jax.devices()[0]
    turns, size = 50, 100_000

    def running(xs):
        return lax.scan(lambda total, x: (total + x, total * x), jnp.zeros(size), xs)

    once = turns * size * 4
    moved = cost_of(program(running, device, ((turns, size), jnp.float32))).bytes
    assert 3 * once < moved < 20 * once < turns * once  # also reads and writes the running total, at every turn


EXCHANGES = {
    "all-reduce": (lambda x: lax.psum(x, AXIS), 4 * 96, 2 * 3 / 4),
    "all-gather": (lambda x: lax.all_gather(x, AXIS), 4 * 4 * 96, 3 / 4),
    "reduce-scatter": (lambda x: lax.psum_scatter(x, AXIS, tiled=True), 4 * 96, 3 / 4),
    "all-to-all": (lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True), 4 * 96, 3 / 4),
    "collective-permute": (lambda x: lax.ppermute(x, AXIS, [(i, (i + 1) % 4) for i in range(4)]), 4 * 96, 1),
}


@pytest.mark.parametrize("kind", EXCHANGES)
def test_exchanges_their_bytes_and_their_loops(kind):
    function, payload, share = EXCHANGES[kind]

    def both(x):
        return function(x), lax.scan(lambda c, _: (jnp.sin(function(c).sum() + c), None), x, None, length=3)[0]

    mapped = jax.shard_map(
        both,
        mesh=make_mesh(jax.devices()[:4]),
        in_specs=PartitionSpec(AXIS),
        out_specs=PartitionSpec(AXIS),
        check_vma=False,
    )
    compiled = jax.jit(mapped).lower(jnp.ones(4 * 96)).compile()
    actual = cost_of(parse(compiled.as_text())).collectives
    assert {exchange.kind for exchange in actual} == {kind}
    assert sorted((exchange.times, len(exchange.loops)) for exchange in actual) == [(1, 0), (3, 1)]
    assert {(exchange.payload_bytes, exchange.sent) for exchange in actual} == {(payload, share * payload)}


def test_shapes():
    assert parse_arrays("f32[2,3]{1,0:T(8,128)S(1)}") == (Array("f32", (2, 3), 1),)
    assert parse_arrays("(s32[], (pred[4]{0}, bf16[2,8]{1,0}), u4[3]{0}, token[])") == (
        Array("s32", ()),
        *(Array("pred", (4,)), Array("bf16", (2, 8))),
        *(Array("u4", (3,)), Array("token", ())),
    )
    assert [Array(*a).bytes for a in (("s32", ()), ("pred", (4,)), ("bf16", (2, 8)), ("u4", (3,)), ("token", ()))] == [
        *(4, 4, 32, 2, 0)
    ]


def test_an_unknown_instruction_costs_its_bytes():
    text = """HloModule m, num_partitions=1

ENTRY %main (a: f32[10], b: f32[6]) -> f32[16] {
  %a = f32[10]{0} parameter(0)
  %b = f32[6]{0} parameter(1)
  ROOT %c = f32[16]{0} frobnicate(%a, %b), axis=0
}
"""
    cost = cost_of(parse(text))
    assert products(parse(text)) == (0, 0) and cost.bytes == 4 * (10 + 6 + 16)


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no entry"):
        parse("module @jit_f { func.func @main() }")


def test_every_instruction_of_a_real_program_is_read():
    text = jax.jit(scanned(3)).lower(jnp.ones((64, 128)), jnp.ones((128, 128))).compile().as_text()
    lines = [line for line in text.splitlines() if line.startswith("  ") and " = " in line]
    assert sum(len(computation.instructions) for computation in parse(text).computations.values()) == len(lines) > 10
