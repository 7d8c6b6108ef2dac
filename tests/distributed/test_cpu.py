"""Tests how the cores of a CPU are divided into devices."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmo_jax.config import Config, LSTMConfig
from elmo_jax.distributed import cpu
from elmo_jax.distributed.cpu import available_cores, devices_for
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.training.partitioning import with_precision
from tests.end_to_end.commands import wait
from tests.end_to_end.forked import SERVER, Forked

SMALL, LARGE = LSTMConfig(cells=256, projection=64), LSTMConfig(cells=512, projection=256)


@pytest.mark.parametrize(
    ("config", "rows", "cores", "devices"),
    [
        (SMALL, 64, 2, 2),
        (SMALL, 64, 1, 1),
        (SMALL, 64, 16, 8),  # 8 rows per device
        (SMALL, 32, 2, 2),
        (SMALL, 16, 2, 2),
        (SMALL, 8, 2, 1),
        (SMALL, 1024, 16, 16),
        (SMALL, 1024, 6, 4),
        (SMALL, 63, 2, 1),
        (SMALL, 97, 3, 1),
        (SMALL, 96, 3, 2),  # three devices could not divide the 256 groups of rows of the softmax
        (SMALL, 192, 6, 4),
        (SMALL, 1, 2, 1),
        (LARGE, 64, 2, 1),
        (LSTMConfig(cells=4096, projection=512), 1024, 16, 1),
    ],
)
def test_small_models_get_a_device_per_core(config, rows, cores, devices):
    assert devices_for(config, rows, cores) == devices


PROGRAM = """
import jax
from elmo_jax.config import LSTMConfig
from elmo_jax.distributed.cpu import divide_cpu
{before}
divide_cpu(LSTMConfig(cells=256, projection=64), 64)
print(jax.device_count(), jax.config.read(\"jax_cpu_enable_async_dispatch\"))
"""


def devices_after(settings, before=""):
    clean = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    code, environment = PROGRAM.format(before=before), clean | {"JAX_PLATFORMS": "cpu"} | settings
    if "JAX_NUM_CPU_DEVICES" in settings:  # JAX reads it when it is imported
        output = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    else:
        ended = wait(Forked(SERVER, ("builtins:exec", [code]), Path(), environment))
        assert ended.status == 0, ended.stderr
        output = ended.stdout
    devices, asynchronous = output.split()
    assert asynchronous == "False"  # programs of one device run in the first thread
    return int(devices)


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({}, min(2, available_cores())),
        ({"JAX_NUM_CPU_DEVICES": "1"}, 1),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
    ],
)
def test_what_the_user_has_set_stays(settings, devices):
    assert devices_after(settings) == devices


@pytest.mark.parametrize(
    ("before", "devices"),
    [
        ("jax.devices()", min(2, available_cores())),  # as after a biLM has been read
        ("array = jax.numpy.ones(2)", 1),
    ],
)
def test_devices_with_arrays_stay(before, devices):
    assert devices_after({}, before) == devices


def test_cores_are_limited_by_the_quota_of_a_container(tmp_path, monkeypatch):
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(cpu, "_QUOTA", quota)
    free = available_cores()
    for text, cores in (("max 100000", free), ("150000 100000", 1), ("50000 100000", 1), ("9900000 100000", free)):
        quota.write_text(text)
        assert available_cores() == cores


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("fma avx512_bf16", "bfloat16"), ("avx512f amx_bf16 amx_tile", "bfloat16"), ("fma avx512f", "float32")],
)
def test_automatic_precision_is_that_of_the_processor(flags, precision, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text(f"flags : {flags}\n")
    monkeypatch.setattr(cpu, "_CPU_INFO", info)

    def resolved(setting):
        train = dataclasses.replace(Config().train, precision=setting)
        return with_precision(dataclasses.replace(Config(), train=train), make_mesh()).train.precision

    assert [resolved(setting) for setting in ("auto", "float32", "bfloat16")] == [precision, "float32", "bfloat16"]
    info.unlink()  # as on macOS
    assert resolved("auto") == "float32"
