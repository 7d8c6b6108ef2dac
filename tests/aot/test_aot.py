"""`elmo-jax compile`: the paper's step for a TPU slice that is not here, and what a user is told."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from elmo_jax.aot import step
from elmo_jax.aot.compile_report import Report
from elmo_jax.aot.cost import Cost, runs
from elmo_jax.aot.hlo import parse
from elmo_jax.aot.step import compile_step, find_target
from elmo_jax.cli.main import main
from elmo_jax.config_file import load_config
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.runs import progress
from elmo_jax.training.softmax_sharding import FURTHER_ROUNDS
from tests.aot.products import products
from tests.training.helpers import TYPES as TYPES_OF_SMALL
from tests.training.helpers import SmallTraining, small_config

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
VOCABULARY, TYPES = 793_471, 800_000
CELLS, PROJECTION, ROWS, CHIPS, STEPS = 4096, 512, 128, 8, 20
PARAMETERS = 93_600_848  # without the softmax
# those whose update is divided over the chips: of the LSTM layers, the highways and the encoder's projection
DIVIDED = 4 * (1024 * 4 * CELLS + CELLS * PROJECTION) + 4 * 2048 * 2048 + 2048 * PROJECTION


@pytest.fixture(scope="module")
def paper():
    """Compiles the paper's model for 8 chips with 128 rows each, in bfloat16."""
    path = EXPERIMENTS / "pretrain_1b_word.py"
    settings = [f"--config.train.batch_size={CHIPS * ROWS}", "--config.train.precision=bfloat16"]
    config = load_config(path, settings)
    target = find_target("v5e:2x4")
    compiled = compile_step(config, target, VOCABULARY, TYPES)
    return Report("1b_word", config, target, VOCABULARY, TYPES, compiled), parse(compiled.text)


@pytest.mark.slow
def test_the_papers_model_fits_on_eight_chips(paper):
    actual, _ = paper
    memory = actual.compiled.memory
    assert memory["parameters"] == 4 * PARAMETERS
    sums = PARAMETERS - DIVIDED + DIVIDED // CHIPS
    assert memory["optimizer"] == 4 * sums + 4  # Adagrad's sums of squares, and the steps that the schedule counts
    assert memory["LSTM carry"] == 4 * 2 * 2 * ROWS * (CELLS + PROJECTION)
    assert memory["character ids"] == 2 * 50 * TYPES
    assert sum(memory.values()) < actual.target.chip.usable
    assert memory["temporaries"] > 4 * 2 * STEPS * ROWS * 4 * CELLS  # at least the gates of one layer


@pytest.mark.slow
def test_nothing_is_exchanged_inside_a_loop(paper):
    actual, _ = paper
    exchanges = actual.cost.collectives
    # except the rounds of an exchange after the first, which some batches may need
    inside = [exchange for exchange in exchanges if exchange.loops]
    assert all(FURTHER_ROUNDS in exchange.loops[-1] and exchange.times == 0 for exchange in inside)
    assert len(exchanges) > len(inside) and all(exchange.devices == CHIPS for exchange in exchanges)
    assert all(exchange.times == 1 for exchange in exchanges if exchange not in inside)
    reduced = sum(exchange.payload_bytes for exchange in exchanges if exchange.kind in ("all-reduce", "reduce-scatter"))
    assert 4 * PARAMETERS <= reduced
    assert actual.sent == pytest.approx(sum(exchange.sent for exchange in exchanges if exchange not in inside))


@pytest.mark.slow
def test_the_programs_products_are_the_models(paper):
    """Within the places that no character fills, and the windows of narrow filters, both of which are zeros."""
    actual, program = paper
    flops, of_bf16 = products(program, actual.assume)
    assert actual.model_flops / CHIPS == pytest.approx(flops, rel=0.1)
    # These are float32 on purpose: sums over characters of the encoder's gradient, as a product with one-hot rows.
    assert of_bf16 < 1.01 * flops
    estimate = actual.estimate
    assert estimate["seconds"] == max(estimate["compute"], estimate["memory"], estimate["exchange"])
    assert estimate["tokens_per_second"] == CHIPS * ROWS * STEPS / estimate["seconds"]
    assert estimate["compute"] == pytest.approx(actual.model_flops / CHIPS / 197e12)


def lstm_loops(program):
    """The instructions of the loops over time, with their computations, those that are fused included."""

    def inside(name):
        computation = program.computations[name]
        for instruction in computation.instructions.values():
            yield computation, instruction
            if called := instruction.called("calls"):
                yield from inside(called)

    for computation in program.computations.values():
        for loop in computation.instructions.values():
            if loop.opcode == "while" and "_layer" in loop.op_name:
                yield list(inside(loop.called("body")))


@pytest.mark.slow
def test_the_loops_over_time_neither_move_nor_convert_weights(paper):
    """The weights are rounded, laid out and brought near before the loop; in it they are only read."""
    _, program = paper
    loops = list(lstm_loops(program))
    assert len(loops) == 4  # two layers, forward and backward
    weights = [sorted(dims) for dims in ((PROJECTION, 4 * CELLS), (CELLS, PROJECTION))]  # of one direction

    def is_weights(instruction):
        return any(sorted(array.dims[-2:]) in weights for array in instruction.arrays)

    moving = ("copy", "transpose", "convert", "copy-start", "copy-done", "reverse", "concatenate", "pad")
    for loop in loops:
        assert any(is_weights(instruction) for _, instruction in loop)  # these are found, so the test can find others
        assert not [i.name for _, i in loop if i.opcode in moving and is_weights(i)]


@pytest.mark.slow
def test_the_matrix_units_are_fed_with_bfloat16(paper):
    _, program = paper
    for loop in lstm_loops(program):
        products = [(where, i) for where, i in loop if i.opcode in ("dot", "convolution")]
        assert len(products) >= 2  # into the gates, into the projection
        for where, product in products:
            assert {operand.arrays[0].dtype for operand in where.inputs(product)} == {"bf16"}, product.name


@pytest.mark.slow
def test_loops_are_known_or_assumed(paper):
    actual, program = paper
    loops = [
        (run.op_name, turns)
        for _, run, turns, _ in runs(program, program.entry, actual.assume)
        if run.opcode == "while"
    ]
    assert sum("_layer" in name and turns == STEPS for name, turns in loops) == 4
    encoder = [turns for name, turns in loops if "token_encoder" in name]
    # There are 1,500 of at most 5,120 words, which fill 1 of 3 chunks; each chunk has 16 positions of the filters.
    assert sorted(encoder) == [3, 3, 16, 16]


@pytest.fixture(scope="module")
def training():
    """Returns a small training."""
    return SmallTraining(small_config(), devices=4)


def test_a_mesh_of_cpus(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_OF_A_LINE", 0.01)
    out = tmp_path / "numbers.json"
    arguments = ["compile", "--config", str(small), "--topology", "cpu:4", "--vocab-size", "500", "--json", str(out)]
    assert main([*arguments, "--config.train.batch_size=12"]) == 0
    shown, progress_shown = capsys.readouterr()
    # Without a terminal there is a line every 30 seconds, here every hundredth of one.
    lines = progress_shown.splitlines()
    assert re.fullmatch(r"tracing the step … 00:0\d", lines[0])
    assert re.fullmatch(r"compiling it for cpu:4, which takes minutes for a large model … \d\d:\d\d", lines[-1])
    assert re.search(r"\(compiled in \d+ s\)", shown)
    assert "small_test on cpu:4: 4 devices, 3 rows each, float32, 500 words" in shown
    assert "no estimate" in shown and "tokens/s" not in shown
    numbers = json.loads(out.read_text())
    assert numbers["fits"] and numbers["estimate"] is None and numbers["devices"] == 4
    assert numbers["memory"]["total"] == sum(
        size for part, size in numbers["memory"].items() if part not in ("total", "usable")
    )
    assert {exchange["kind"] for exchange in numbers["collectives"]} >= {"all-reduce"}
    assert not any(exchange["loops"] and exchange["times"] for exchange in numbers["collectives"])
    assert numbers["sent_bytes"] == sum(e["sent_bytes"] * e["times"] for e in numbers["collectives"])
    columns = re.findall(r"^  \S+ +([\d.]+) +([\d.]+)  (?:out|in)side", shown, re.MULTILINE)
    sizes = [(e["payload_bytes"] / 1e6, e["sent_bytes"] * e["times"] / 1e6) for e in numbers["collectives"]]
    np.testing.assert_allclose(np.array(columns, float), sizes, rtol=0, atol=0.0051)
    assert numbers["word_types"] == 500 and numbers["assumed"]["distinct"] <= 2 * 5 * 3


@pytest.mark.slow
def test_the_keys_of_json_and_what_is_called_an_estimate(paper):
    actual, _ = paper
    numbers = json.loads(json.dumps(actual.as_dict()))
    assert set(numbers) == {
        *("experiment", "topology", "devices", "batch_size", "rows_per_device", "precision", "vocabulary_size"),
        *("word_types", "compile_seconds", "fits", "memory", "collectives"),
        "model_flops",
        *("main_memory_bytes", "sent_bytes", "assumed", "estimate"),
    }
    assert set(numbers["collectives"][0]) == {
        *("kind", "payload_bytes", "sent_bytes", "devices", "times", "loops", "op_name"),
    }
    assert numbers["estimate"]["limited_by"] in ("matrix products", "main memory", "exchange")
    lines = [line for line in actual.describe().splitlines() if "tokens/s" in line or "utilization" in line]
    assert len(lines) == 2 and all("estimated" in line for line in lines)


def test_the_step_is_the_one_that_is_trained(training):
    """The shapes that it is compiled from are those of real batches and a real state."""
    state, batch, char_ids = step.step_shapes(training.config, training.step, training.mesh, TYPES_OF_SMALL)
    real = next(training.host_batches())

    def shapes(tree):
        return jax.tree.map(lambda leaf: (leaf.shape, np.dtype(leaf.dtype)), tree)

    assert shapes(state) == shapes(training.state) and shapes(batch) == shapes(real)
    assert char_ids.shape == training.char_ids.shape


def test_float32_products_are_six_bfloat16_products(small, monkeypatch):
    monkeypatch.setattr(Report, "cost", Cost(0.0, []))

    def compute(precision):
        config = load_config(small, [f"--config.train.precision={precision}"])
        report = Report("small", config, find_target("cpu:4"), 500, 500, None)
        return report.work["compute"] / report.model_flops * 4

    assert (compute("bfloat16"), compute("float32")) == (1, 6)


def test_words_are_estimated_for_the_rows_that_are_trained_at_once(small):
    def distinct(rows, groups):
        overrides = [f"--config.train.batch_size={rows}", f"--config.train.accumulate={groups}"]
        return Report("small", load_config(small, overrides), find_target("cpu:4"), 500, 500, None).distinct_words

    assert distinct(400, 1) == distinct(1200, 3) < distinct(1200, 1)


@pytest.mark.slow
def test_the_compilers_word_on_memory_is_understood(small, capsys, tmp_path):
    """A real refusal: softmax rows alone that no v5e holds."""
    out = tmp_path / "numbers.json"
    arguments = ["compile", "--config", str(small), "--topology", "v5e:2x2", "--vocab-size", "900000000"]
    assert main([*arguments, "--json", str(out)]) == 1
    shown = capsys.readouterr().out
    assert "that a program can have: does not fit" in shown and "softmax accumulator" in shown
    numbers = json.loads(out.read_text())
    assert not numbers["fits"] and numbers["memory"]["usable"] == 15.75 * 2**30 < numbers["memory"]["total"]
    assert "estimate" not in numbers and numbers["memory"]["softmax rows"] > 7e9


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        ("v5e:17x16", "no such slice (slices of v5e: 1x1, 2x2, "),
        ("v5e:2x2x2", "no such slice (slices of v5e: "),
        ("v5litepod:2x4", "no such slice (chips: v4, v5e, v5p, v6e; or cpu:8"),
        ("cpu:0", "no such slice (chips: "),
        ("cpu:64", "JAX was started with 4 CPU devices; set XLA_FLAGS="),
    ],
)
def test_a_topology_that_is_none_is_one_line(topology, told, small, capsys):
    assert main(["compile", "--config", str(small), "--topology", topology]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"elmo-jax: --topology {topology}: ") and told in error and error.count("\n") == 1


def test_rows_that_the_chips_do_not_divide(small, capsys):
    assert main(["compile", "--config", str(small), "--topology", "v5e:4x4", "--config.train.batch_size=24"]) == 2
    refused = "config.train.batch_size: 24 rows cannot be divided over 16 devices; take a multiple of 16"
    assert refused in capsys.readouterr().err


def test_without_libtpu_is_one_line(small, capsys, monkeypatch):
    monkeypatch.setattr(step.importlib.util, "find_spec", lambda name: None)
    assert main(["compile", "--config", str(small), "--topology", "v5e:2x2"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'elmo_jax[tpu]'" in error and error.count("\n") == 1


def test_the_memory_of_the_chips_is_the_published_one():
    """See https://cloud.google.com/tpu/docs; a program can use all but less than 2 GiB of it."""
    usable = {name: chip.usable / 2**30 for name, chip in step.CHIPS.items()}
    published = {"v4": 32, "v5e": 16, "v5p": 96, "v6e": 32}
    assert usable.keys() == published.keys()
    assert all(published[name] - 2 < size <= published[name] for name, size in usable.items())


@pytest.mark.parametrize("chip", ["v4:2x2x1", "v5e:1x1", "v5e:16x16", "v5p:4x8x8", "v6e:2x4"])
def test_a_slice_has_a_device_a_chip(chip):
    shape = [int(size) for size in chip.split(":")[1].split("x")]
    mesh = make_mesh(find_target(chip).devices)
    assert mesh.size == np.prod(shape) and mesh.devices.flat[0].platform == "tpu"


@pytest.mark.parametrize(
    "code",
    [
        "import elmo_jax, jax; elmo_jax.load_bilm; jax.devices()",
        pytest.param("import jax, elmo_jax; jax.devices()", marks=pytest.mark.slow),
        pytest.param("from elmo_jax.aot.step import find_target; find_target('v5e:2x2')", marks=pytest.mark.slow),
    ],
)
def test_libtpu_is_quiet_where_there_is_no_tpu(code, tmp_path):
    """Whether it is asked for devices or for its compiler, and for nobody else in the way."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TPU_", "ALLOW_MULTIPLE"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
