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

from tests.environment import xla_flags

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = xla_flags(8)

WORKER = "PYTEST_XDIST_WORKER" in os.environ  # then the folder is there already, made by the process that started it
if not WORKER:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="elmo-jax-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# a shell starts its background jobs with SIGINT ignored, and processes started by the tests would inherit that
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps on one worker what shares costly fixtures: the folder end_to_end, and every other file by itself.

    The largest group comes first, so that the workers end at about the same time.
    """
    for item in items:
        folder, _, name = item.nodeid.partition("::")[0].removeprefix("tests/").partition("/")
        item.add_marker(pytest.mark.xdist_group(folder if folder == "end_to_end" else f"{folder}/{name}"))
    items.sort(key=lambda item: not item.nodeid.startswith("tests/end_to_end/"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the compiled programs, once all workers have ended."""
    if not WORKER:
        shutil.rmtree(os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
