"""Sets eight CPU devices for JAX, quick compilation shared by all processes, and Ctrl-C as a terminal has it.

Most of what the tests take is compiling. So XLA is asked for code that is compiled sooner and runs slower, and all
processes of a run of the suite, pytest's workers and the commands that tests start, share compiled programs in a
folder that is removed at the end.
"""

import os
import shutil
import signal
import tempfile

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.environment import xla_flags

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = xla_flags(8)

WORKER = "PYTEST_XDIST_WORKER" in os.environ  # then the process that started this one has made the folder
if not WORKER:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="elmo-jax-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

# A shell starts its background jobs with SIGINT ignored, which the processes of the tests would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFixtures(LoadScopeScheduling):
    """Keeps on one worker what shares costly fixtures: the folder end_to_end, and every other file by itself."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "end_to_end" if file.startswith("tests/end_to_end/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFixtures:
    """Returns the scheduler of the workers; it starts with the largest group."""
    return ByFixtures(config, log)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the compiled programs, once all workers have ended."""
    if not WORKER:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
