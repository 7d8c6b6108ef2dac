"""Sets CPU devices for JAX, one cache of compiled programs for all processes, the workers, and Ctrl-C as in a terminal.

Most of the time of the tests goes into compilation. So XLA is asked for code that is compiled sooner and runs slower
(`tests/environment.py`), and every process of the suite, pytest's workers and the commands that tests start, keeps
its compiled programs in the checkout's `.cache/`, where the next run of the suite finds them.
"""

import gc
import os
import shutil
import signal
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from elmo_jax.distributed.cpu import available_cores
from elmo_jax.environment import keep_compiled_programs
from tests.environment import xla_flags

ROOT = Path(__file__).parents[1]
WORKER = "PYTEST_XDIST_WORKER" in os.environ  # not the process that the user has started
MEMORY_PER_WORKER = 4e9  # bytes, for a worker and the processes that its tests start
# The files that take longest, longest first: none of them should be left over for the end.
LONGEST = (
    "distributed/test_pods.py",
    "end_to_end/test_finetune.py",
    "tasks/core/test_training.py",
    "end_to_end/test_resume.py",
    "training/test_step.py",
    "tasks/core/test_all_tasks.py",
    "end_to_end/test_readme.py",
    "model/test_elmo.py",
    "training/test_softmax_sharding.py",
    "tasks/core/test_command.py",
    "distributed/test_saves.py",
    "distributed/test_embed.py",
    "end_to_end/test_pretrain.py",
    "end_to_end/test_failures.py",
    "test_flags.py",
    "experiments/test_gains.py",
    "tasks/sst/test_model.py",
    "embedding/test_embed.py",
)

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = xla_flags(4)
if not WORKER:
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
keep_compiled_programs(ROOT / ".cache")

# Checkpoints are written, synchronized and deleted all the time, which takes time on a disk.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 8e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

gc.set_threshold(50_000)  # tracing makes many objects, few of which are garbage

# A shell starts its background jobs with SIGINT ignored, and nohup does so with SIGHUP; the processes of the tests
# would inherit both.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file on one worker, and all of `fuzz`, since they share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/fuzz" if nodeid.startswith("tests/fuzz/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Returns the scheduler of the workers."""
    return ByFile(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Returns the number of workers, as far as there is memory for them: one more than cores, since many tests wait."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(available_cores() + 1, int(memory / MEMORY_PER_WORKER)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first; the workers begin with the first ones."""
    order = {str(ROOT / "tests" / name): position for position, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(str(item.path), len(order)))
