"""Reports the memory and the exchanges of a compiled training step, and estimates its speed."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

from elmo_jax.aot.cost import Cost, cost_of
from elmo_jax.aot.hlo import Instruction, parse
from elmo_jax.aot.step import Compiled, Target
from elmo_jax.config import Config
from elmo_jax.distributed.mesh import make_mesh
from elmo_jax.training.partitioning import preferred_encoder_chunk
from elmo_jax.training.softmax_sharding import FURTHER_ROUNDS
from elmo_jax.training.throughput import Work

# Measured in windows of 128 to 1,024 rows of 20 tokens in both directions (State of the Union addresses; 100 novels):
# there are 1,340 to 1,460 distinct words among 5,120 tokens, and they grow by Heaps' law with an exponent of 0.65.
_TYPICAL_TOKENS, _TYPICAL_WORDS, _HEAPS = 5_120, 1_500, 0.65
_TYPICAL_POSITIONS = 16.0  # of 50 positions, for chunks of 1,024 of these words, sorted by length

_PASSES = 6  # bf16 products that a product of full float32 precision takes on a TPU
# The work of a step, whose time is estimated as if the other work were hidden behind it: names and units.
_WORK = {
    "compute": ("matrix products", "TFLOP", 1e12),
    "memory": ("main memory", "GB", 1e9),
    "exchange": ("exchange", "GB", 1e9),
}


@dataclasses.dataclass(frozen=True)
class Report:
    """The report about a compiled step."""

    title: str  # the name of the experiment
    config: Config
    target: Target
    vocabulary_size: int  # the words of the softmax
    word_types: int  # the words of the lexicon
    compiled: Compiled

    @property
    def fits(self) -> bool:
        return bool(self.compiled.text)

    @property
    def rows(self) -> int:
        return self.config.train.batch_size // len(self.target.devices)

    @property
    def group_tokens(self) -> int:
        """The tokens that a device reads at once, in all directions."""
        train = self.config.train
        return len(self.config.model.directions) * train.unroll_steps * (self.rows // train.accumulate)

    @property
    def distinct_words(self) -> int:
        """The number of distinct words among `group_tokens` of typical English text."""
        return min(self.group_tokens, round(_TYPICAL_WORDS * (self.group_tokens / _TYPICAL_TOKENS) ** _HEAPS))

    @property
    def positions(self) -> float:
        """The number of positions that the filters are applied to, averaged over the encoder's chunks of words."""
        return min(_TYPICAL_POSITIONS, self.config.model.char_cnn.max_characters)

    @functools.cached_property
    def cost(self) -> Cost:
        return cost_of(parse(self.compiled.text), self.assume)

    def assume(self, instruction: Instruction) -> float:
        """Assumes how often something runs that depends on the batch.

        The token encoder skips chunks without words and positions without characters. The exchange of softmax rows has
        further rounds only for batches that hardly ever occur.
        """
        if FURTHER_ROUNDS in instruction.op_name:
            return 0.0
        if "token_encoder" not in instruction.op_name:
            return 1.0
        if instruction.opcode == "while":
            return self.positions
        room = min(self.group_tokens, self.word_types)  # the most distinct words
        chunk = min(preferred_encoder_chunk(make_mesh(self.target.devices)), room)
        return min(1.0, math.ceil(self.distinct_words / chunk) / math.ceil(room / chunk))

    @property
    def sent(self) -> float:
        """The bytes that a device sends per step."""
        return sum(exchange.times * exchange.sent for exchange in self.cost.collectives)

    @property
    def model_flops(self) -> float:
        """The operations of the model per step on all devices, as `throughput.Work` counts them."""
        work = Work(self.config, self.vocabulary_size, self.positions)
        groups = len(self.target.devices) * self.config.train.accumulate
        return work.operations(self.config.train.tokens_per_step, self.distinct_words * groups)

    @property
    def work(self) -> dict[str, float]:
        """The work of a step on one device by the keys of `_WORK`, in operations and bytes."""
        passes = _PASSES if self.config.train.precision == "float32" else 1
        compute = passes * self.model_flops / len(self.target.devices)
        return {"compute": compute, "memory": self.cost.bytes, "exchange": self.sent}

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The estimate of a step's time in seconds; None if no rates of the device are published. Nothing is run.

        `seconds` is the longest of the times that the matrix products, the traffic of the main memory and the exchanges
        would take alone. `peak` is the bf16 operations per second of all chips.
        """
        chip = self.target.chip
        if chip is None:
            return None
        times = {key: amount / chip.rates[key] for key, amount in self.work.items()}
        longest = max(times, key=times.__getitem__)
        seconds, tokens = times[longest], self.config.train.tokens_per_step
        peak = chip.rates["compute"] * len(self.target.devices)
        return times | {
            "seconds": seconds,
            "limited_by": _WORK[longest][0],
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "model_flops": self.model_flops,
            "peak": peak,
            "flop_utilization": self.model_flops / (seconds * peak),
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for `--json`, in bytes, seconds and operations."""
        chip, memory = self.target.chip, self.compiled.memory
        report = {
            "experiment": self.title,
            "topology": self.target.topology,
            "devices": len(self.target.devices),
            "batch_size": self.config.train.batch_size,
            "rows_per_device": self.rows,
            "precision": self.config.train.precision,
            "vocabulary_size": self.vocabulary_size,
            "word_types": self.word_types,
            "compile_seconds": self.compiled.seconds,
            "fits": self.fits,
            "memory": {**memory, "total": sum(memory.values()), "usable": chip.usable if chip else None},
        }
        if not self.fits:
            return report
        return report | {
            "collectives": [exchange._asdict() | {"sent_bytes": exchange.sent} for exchange in self.cost.collectives],
            "model_flops": self.model_flops,
            "main_memory_bytes": self.cost.bytes,
            "sent_bytes": self.sent,
            "assumed": {"distinct": self.distinct_words, "positions": self.positions},
            "estimate": self.estimate,
        }

    def describe(self) -> str:
        memory, chip = self.compiled.memory, self.target.chip
        fits = "fits" if self.fits else "does not fit"
        of = f" of {chip.usable / 1e9:.2f} that a program can have: {fits}" if chip else ""
        lines = [
            f"{self.title} on {self.target.topology}: {len(self.target.devices)} devices, {self.rows} rows each,"
            f" {self.config.train.precision}, {self.vocabulary_size:,} words in the softmax"
            f" (compiled in {self.compiled.seconds:.0f} s)\n",
            f"{'memory of a device':<24}{'GB':>8}",
            *(f"  {name:<22}{size / 1e9:>8.2f}" for name, size in memory.items()),
            f"  {'in all':<22}{sum(memory.values()) / 1e9:>8.2f}{of}",
        ]
        return "\n".join([*lines, *self._exchanges(), *self._estimate()] if self.fits else lines)

    def _exchanges(self) -> Iterator[str]:
        yield f"\n{'exchanges of a step':<24}{'payload MB':>12}{'a device sends MB':>20}  where"
        for exchange in self.cost.collectives:
            where = "outside all loops"
            if exchange.loops:
                loop = exchange.loops[-1].split("shard_map/")[-1]
                where = f"inside a loop, {exchange.times:,.0f} times per step: {loop}"
            sizes = f"{exchange.payload_bytes / 1e6:>12,.2f}{exchange.times * exchange.sent / 1e6:>20,.2f}"
            yield f"  {exchange.kind:<22}{sizes}  {where}"
        yield f"  {'in all':<22}{'':>12}{self.sent / 1e6:>20,.2f}\n"

    def _estimate(self) -> Iterator[str]:
        estimate, chip, devices = self.estimate, self.target.chip, len(self.target.devices)
        basis = "no estimate of its time, since no rates of the device are published" if chip is None else "estimated"
        yield f"work of a step on a device, from the program; nothing was run; {basis}"
        for key, (name, unit, scale) in _WORK.items():
            line = f"  {name:<18}{self.work[key] / scale:>10.2f} {unit}"
            if estimate and chip:
                line += f" at {chip.rates[key] / scale:,.0f} {unit}/s: {estimate[key] * 1e3:.2f} ms"
            yield line
        if estimate:
            speed = estimate["tokens_per_second"]
            yield f"  estimated step: {estimate['seconds'] * 1e3:.2f} ms, limited by: {estimate['limited_by']}"
            yield f"  estimated tokens/s: {speed:,.0f} ({speed / devices:,.0f} per chip)"
            yield f"  estimated FLOP utilization: {estimate['flop_utilization']:.0%} of the chips' bf16 rate"
        yield (
            f"assumed: {self.distinct_words:,} distinct words in a group of rows, filters applied to"
            f" {self.positions:.1f} positions (as in English text), one round of the exchange of softmax rows"
        )
