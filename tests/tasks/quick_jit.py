"""`jax.jit` for tests: the machine code is not optimised, since tests compile far longer than they run."""

from functools import partial

import jax

quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
