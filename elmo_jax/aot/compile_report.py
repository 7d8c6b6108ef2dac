"""Reports the memory and the exchanges of a compiled training step, and estimates its speed."""

import dataclasses
import functools
import math
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


# The times of an estimate, each as if the others were hidden behind it: their keys and names.
_TIMES = {"compute": "matrix products", "memory": "main memory", "exchange": "exchange"}
_PASSES = 6  # bf16 products that a product of full float32 precision takes on a TPU


@dataclasses.dataclass(frozen=True)
class Report:
    """The report about a step that fits."""

    title: str  # the name of the experiment
    config: Config  # the settings
    target: Target  # the devices that the step was compiled for
    vocabulary_size: int  # the words of the softmax
    word_types: int  # the words of the lexicon
    compiled: Compiled  # the compiled step
    fits = True

    @property
    def rows(self) -> int:
        """The rows per device."""
        return self.config.train.batch_size // len(self.target.devices)

    @property
    def group_rows(self) -> int:
        """The rows that a device trains at once."""
        return self.rows // self.config.train.accumulate

    @property
    def distinct_words(self) -> int:
        """The number of distinct words in a device's group of rows of typical English text."""
        tokens = len(self.config.model.directions) * self.config.train.unroll_steps * self.group_rows
        return min(tokens, round(_TYPICAL_WORDS * (tokens / _TYPICAL_TOKENS) ** _HEAPS))

    @property
    def positions(self) -> float:
        """The number of positions that the filters are applied to, averaged over the encoder's chunks of words."""
        return min(_TYPICAL_POSITIONS, self.config.model.char_cnn.max_characters)

    @functools.cached_property
    def cost(self) -> Cost:
        """The work of a step on one device."""
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
        # the most distinct words
        room = min(
            self.config.train.unroll_steps * self.group_rows * len(self.config.model.directions), self.word_types
        )
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
    def passes(self) -> int:
        """The number of bf16 products that a matrix product takes."""
        return _PASSES if self.config.train.precision == "float32" else 1

    @property
    def estimate(self) -> dict[str, Any] | None:
        """The estimate of a step's time in seconds; None if no rates of the device are published. Nothing is run.

        `seconds` is the longest of the times that the matrix products, the traffic of the main memory and the exchanges
        would take alone. `peak` is the bf16 operations per second of all chips.
        """
        chip, devices = self.target.chip, len(self.target.devices)
        if chip is None:
            return None
        times = {
            "compute": self.passes * self.model_flops / devices / chip.flops,
            "memory": self.cost.bytes / chip.memory_rate,
            "exchange": self.sent / chip.link_rate,
        }
        longest = max(times, key=times.__getitem__)
        seconds, tokens, peak = times[longest], self.config.train.tokens_per_step, chip.flops * devices
        return times | {
            "seconds": seconds,
            "limited_by": _TIMES[longest],
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "model_flops": self.model_flops,
            "peak": peak,
            "flop_utilization": self.model_flops / (seconds * peak),
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for `--json`, in bytes, seconds and operations."""
        chip, memory = self.target.chip, self.compiled.memory
        return {
            "experiment": self.title,
            "topology": self.target.topology,
            "devices": len(self.target.devices),
            "batch_size": self.config.train.batch_size,
            "rows_per_device": self.rows,
            "precision": self.config.train.precision,
            "vocabulary_size": self.vocabulary_size,
            "word_types": self.word_types,
            "compile_seconds": self.compiled.seconds,
            "fits": True,
            "memory": {**memory, "total": sum(memory.values()), "usable": chip.usable if chip else None},
            "collectives": [
                {
                    "kind": exchange.kind,
                    "payload_bytes": exchange.payload,
                    "sent_bytes": exchange.sent,
                    "devices": exchange.group,
                    "times": exchange.times,
                    "loops": list(exchange.loops),
                    "op_name": exchange.op_name,
                }
                for exchange in self.cost.collectives
            ],
            "model_flops": self.model_flops,
            "main_memory_bytes": self.cost.bytes,
            "sent_bytes": self.sent,
            "assumed": {"distinct": self.distinct_words, "positions": self.positions},
            "estimate": self.estimate,
        }

    def describe(self) -> str:
        """Returns the report as tables for the terminal."""
        head = (
            f"{self.title} on {self.target.topology}: {len(self.target.devices)} devices, {self.rows} rows each,"
            f" {self.config.train.precision}, {self.vocabulary_size:,} words in the softmax"
            f" (compiled in {self.compiled.seconds:.0f} s)"
        )
        return "\n\n".join([head, self._memory(), self._exchanges(), self._estimate(), self._assumed()])

    def _memory(self) -> str:
        memory, chip = self.compiled.memory, self.target.chip
        lines = [f"{'memory of a device':<24}{'GB':>8}"]
        lines += [f"  {name:<22}{size / 1e9:>8.2f}" for name, size in memory.items()]
        of = f" of {chip.usable / 1e9:.2f} that a program can have: fits" if chip else ""
        return "\n".join([*lines, f"  {'in all':<22}{sum(memory.values()) / 1e9:>8.2f}{of}"])

    def _exchanges(self) -> str:
        lines = [f"{'exchanges of a step':<24}{'payload MB':>12}{'a device sends MB':>20}  where"]
        for exchange in self.cost.collectives:
            where = "outside all loops"
            if exchange.loops:
                loop = exchange.loops[-1].split("shard_map/")[-1]
                where = f"inside a loop, {exchange.times:,.0f} times per step: {loop}"
            lines.append(
                f"  {exchange.kind:<22}{exchange.payload / 1e6:>12,.2f}"
                f"{exchange.times * exchange.sent / 1e6:>20,.2f}  {where}"
            )
        return "\n".join([*lines, f"  {'in all':<22}{'':>12}{self.sent / 1e6:>20,.2f}"])

    def _estimate(self) -> str:
        estimate, chip, devices = self.estimate, self.target.chip, len(self.target.devices)
        passes = f" ({self.passes} bf16 passes)" if self.passes > 1 else ""
        amounts = {
            "compute": f"{self.model_flops / devices / 1e12:.2f} TFLOP{passes}",
            "memory": f"{self.cost.bytes / 1e9:.1f} GB",
            "exchange": f"{self.sent / 1e9:.2f} GB",
        }
        if estimate is None or chip is None:
            lines = ["work of a step on a device (no rates are published for it, so there is no estimate of its time)"]
            return "\n".join([*lines, *(f"  {_TIMES[key]:<18}{amount}" for key, amount in amounts.items())])
        bytes_per_second = (f"{rate / 1e9:.0f} GB/s" for rate in (chip.memory_rate, chip.link_rate))
        rates = (f"{chip.flops / 1e12:.0f} TFLOP/s", *bytes_per_second)
        lines = ["estimate of a step, from the program and the chip's published rates; nothing was run"]
        for (key, amount), rate in zip(amounts.items(), rates, strict=True):
            lines.append(f"  {_TIMES[key]:<18}{amount:<32}at {rate:<14}{estimate[key] * 1e3:>8.2f} ms")
        speed = estimate["tokens_per_second"]
        return "\n".join(
            [
                *lines,
                f"  estimated step: {estimate['seconds'] * 1e3:.2f} ms, limited by: {estimate['limited_by']}",
                f"  estimated tokens/s: {speed:,.0f} ({speed / devices:,.0f} per chip)",
                f"  estimated FLOP utilization: {estimate['flop_utilization']:.0%} of the chips' bf16 rate",
            ]
        )

    def _assumed(self) -> str:
        lines = [
            "assumed, where the program's work depends on the text",
            f"  {self.distinct_words:,} distinct words in a group of rows, filters applied to"
            f" {self.positions:.1f} positions (as in English text)",
        ]
        if not all(exchange.times for exchange in self.cost.collectives):
            lines.append("  no further rounds of the exchange of softmax rows, which hardly any batch needs")
        return "\n".join(lines)
