"""XLA's options for the tests."""

from importlib.metadata import version

SOONER = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
# Later versions have no other emitters, and exit at an option that they do not know.
if int(version("jaxlib").split(".")[1]) < 11:
    SOONER += " --xla_cpu_use_fusion_emitters=false"


def xla_flags(devices: int) -> str:
    """Returns XLA_FLAGS for a process with some CPU devices, with which programs are compiled faster and run slower."""
    return f"--xla_force_host_platform_device_count={devices} {SOONER}"
