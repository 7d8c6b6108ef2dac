"""Tests how the cores of a CPU are divided into devices."""

import os
import subprocess
import sys

import jax
import pytest

from elmo_jax.config import LSTMConfig
from elmo_jax.distributed.processors import devices_for, divide_cpu
from elmo_jax.environment import available_cores

SMALL, LARGE = LSTMConfig(cells=256, projection=64), LSTMConfig(cells=512, projection=256)


@pytest.mark.parametrize(
    ("config", "rows", "cores", "devices"),
    [
        (SMALL, 64, 2, 2),
        (SMALL, 64, 1, 1),
        (SMALL, 64, 16, 2),  # 32 rows per device
        (SMALL, 1024, 16, 16),
        (SMALL, 1024, 6, 4),  # 1,024 rows cannot be divided by 5 or 6
        (SMALL, 63, 2, 1),
        (SMALL, 97, 3, 1),
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
from elmo_jax.distributed.processors import divide_cpu
divide_cpu(LSTMConfig(cells=256, projection=64), 64)
print(jax.device_count())
"""


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({}, min(2, available_cores())),
        ({"JAX_NUM_CPU_DEVICES": "1"}, 1),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
    ],
)
def test_what_the_user_has_set_stays(settings, devices):
    clean = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment = clean | {"JAX_PLATFORMS": "cpu"} | settings
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout) == devices


def test_devices_that_are_in_use_stay(monkeypatch):
    devices = jax.devices()
    monkeypatch.delenv("XLA_FLAGS")
    divide_cpu(SMALL, 64)
    assert jax.devices() == devices and jax.config.values["jax_num_cpu_devices"] == -1
