"""The environment of the tests: XLA's options, and where compiled programs are kept."""

import hashlib
import importlib.metadata
import platform
from pathlib import Path

SOONER = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def xla_flags(devices: int) -> str:
    """Returns XLA_FLAGS for a process with some CPU devices, with which programs are compiled faster and run slower."""
    return f"--xla_force_host_platform_device_count={devices} {SOONER}"


def compilation_cache(folder: Path) -> Path:
    """Returns the folder of compiled programs in `folder`, named after JAX, XLA's options and the processor.

    JAX's own keys do not contain the processor, and a program compiled for another one may end with SIGILL.
    """
    cpuinfo = Path("/proc/cpuinfo")
    features = "".join(
        line for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else ()) if line.startswith("flags")
    )
    key = hashlib.sha256(f"{SOONER} {platform.machine()} {features}".encode()).hexdigest()[:12]
    return folder / f"compiled-jax{importlib.metadata.version('jaxlib')}-{key}"
