"""Batched inference of a biLM: the host maps words to ids, and one compiled program does the rest.

Shapes: n sentences, T steps, R rows of a device, D devices, N words of a device's output, S sentences of a device whose
states are kept, K rows of the table of word vectors, L LSTM layers, P projection, C cells; a leading 2 is the
direction, forward then backward (1 without backward).

The sentences are packed into rows (`packing`). The program looks up the words' vectors in a table that lives on the
device (`WordTable`), runs as many steps as the longest row has, and writes the output in the order of the text. Rows
that are longer than the program's arrays take several calls, each of which continues from the state of the one before;
a word's two directions may then be in different calls, each of which has zeros in the other's place.

A platform has three programs, which differ in their numbers of rows and steps, and the encoder of new words. With D
devices each one has its own sentences, and nothing is communicated.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from elmo_jax.characters import BEGIN_SENTENCE_WORD, END_SENTENCE_WORD
from elmo_jax.config import ModelConfig
from elmo_jax.distributed.mesh import AXIS, REPLICATED, ROWS
from elmo_jax.embedding.packing import FILL, Platform, Shape, arrange
from elmo_jax.embedding.word_table import WordTable
from elmo_jax.model.bilm import BiLM, initial_carry
from elmo_jax.model.lstm import LSTMSettings, State, inference_step
from elmo_jax.model.precision import Precision, standard_numerics
from elmo_jax.types import Tree

_BY_ROW = PartitionSpec(None, AXIS)  # of arrays [T, D * R], and of all others whose second axis is divided
_PENDING = 4  # the most calls of a group whose outputs are on the devices, which limits the memory of long sentences


class _State(NamedTuple):
    rows: list[State]  # of each layer, those of the rows, [2, D * R, …], from which the next call continues
    # Of the sentences, [2, D * S, …]: that in which one begins, and then that in which it ends; None if these are zeros
    # and of no interest.
    sentences: list[State] | None


class _Inputs(NamedTuple):
    words: Any  # int32 [2, T, D * R] the rows of the table
    begins: Any  # int32 [T, D * R] at the first position of a sentence its number on the device, elsewhere -1
    ends: Any  # int32 [T, D * R] the same for the last position
    mask: Any  # bool [T, D * R] true where there is a word
    index: Any  # int32 [2, D * N] the position of each word of the output, step * R + row, or a larger number for zeros
    steps: Any  # int32 [] the number of steps
    rows: Any  # int32 [] which of the shape's numbers of rows is used


class _Program(NamedTuple):
    """The program of one device, and what it is compiled for."""

    config: ModelConfig
    precision: Precision
    mesh: Mesh
    together: bool
    shape: Shape
    dtype: str  # of the output
    mixed: bool  # whether the output of a word is the weighted sum of its layers; see `Engine.start`

    def run(self, *operands: Any) -> tuple[jax.Array, jax.Array, _State]:
        branches = [partial(self._run_rows, rows) for rows in self.shape.rows]
        inputs: _Inputs = operands[2]
        return lax.switch(inputs.rows, branches, *operands) if len(branches) > 1 else branches[0](*operands)

    def _run_rows(
        self, rows: int, params: Any, table: jax.Array, inputs: _Inputs, state: _State, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array, _State]:
        """Returns the output [N, …], whether all numbers of a word are finite [N], and the state."""
        words = inputs.words[:, :, :rows]  # [2, T, R]
        used = state._replace(rows=jax.tree.map(lambda leaf: leaf[:, :rows], state.rows))
        run = partial(self._direction, table, inputs, rows)
        layers: list[list[jax.Array]]
        if self.together:
            of_both, after = jax.vmap(run)(params, words, used)
            layers = [[layer[d] for layer in of_both] for d in range(len(words))]
        else:
            split = [jax.tree.map(lambda leaf, d=d: leaf[d], used) for d in range(len(words))]
            results = [run(*one) for one in zip(params, words, split, strict=True)]
            layers = [one for one, _ in results]
            after = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(one for _, one in results))
        unused = jax.tree.map(lambda leaf: leaf[:, rows:], state.rows)
        after = after._replace(rows=jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), after.rows, unused))
        parts = self._output(table, words, layers, inputs.index, weights)
        largest = jnp.finfo(self.dtype).max  # numbers are compared before they are rounded, which is faster
        finite = jnp.stack([jnp.abs(part).max(-1) <= largest for part in parts]).all(0)
        return jnp.concatenate(parts, -1).astype(self.dtype), finite, after

    def _direction(
        self, table: jax.Array, inputs: _Inputs, rows: int, params: list[Tree], words: jax.Array, state: _State
    ) -> tuple[list[jax.Array], _State]:
        """Runs the layers of one direction over words [T, R]; returns the outputs [T, R, P], and the states."""
        lstm, numbers = self.config.lstm, range(self.config.lstm.layers)
        settings = LSTMSettings.of(lstm, self.precision)
        turned: Callable[[Any], Any] = partial(jax.tree.map, (lambda x: x) if self.together else (lambda x: x.T))
        layers: list[jax.Array] = []

        def loop(group: Sequence[int]) -> tuple[list[State], list[State] | None]:
            def step(t: jax.Array, carry: tuple[list[State], list[State] | None, list[jax.Array]]) -> Any:
                states, of_sentences, written = carry
                begins, ends, real = inputs.begins[t, :rows], inputs.ends[t, :rows], inputs.mask[t, :rows, None]
                x = turned(layers[group[0] - 1][t] if group[0] else table[words[t]])  # [R, P]; [P, R] if not together
                for i, j in enumerate(group):
                    first: Any = jax.tree.map(jnp.zeros_like, states[i])
                    if of_sentences is not None:
                        first = turned(jax.tree.map(lambda leaf: leaf[begins], of_sentences[i]))
                    before = jax.tree.map(partial(jnp.where, turned(begins[:, None] >= 0)), first, states[i])
                    new = inference_step(params[j], x, before, settings, columns=not self.together)
                    states[i] = jax.tree.map(partial(jnp.where, turned(real)), new, before)
                    if of_sentences is not None:
                        of_sentences[i] = jax.tree.map(
                            lambda leaf, last: leaf.at[ends].set(last, mode="drop", wrap_negative_indices=False),
                            of_sentences[i],
                            turned(states[i]),
                        )
                    x = new.hidden + x if j and lstm.skip_connections else new.hidden
                    written[i] = lax.dynamic_update_index_in_dim(written[i], turned(x), t, 0)
                return states, of_sentences, written

            # Any numbers may be in the arrays that the loop fills: those past the last step are not read.
            unfilled = [jnp.broadcast_to(state.rows[j].hidden, (*words.shape, lstm.projection)) for j in group]
            of_sentences = None if state.sentences is None else [state.sentences[j] for j in group]
            begin = turned([state.rows[j] for j in group]), of_sentences, unfilled
            states, of_sentences, written = lax.fori_loop(0, inputs.steps, step, begin)
            layers.extend(written)
            return turned(states), of_sentences

        after = [loop(group) for group in ([numbers] if self.together else [[j] for j in numbers])]
        kept = None if state.sentences is None else [one for _, states in after for one in states or ()]
        return layers, _State([one for states, _ in after for one in states], kept)

    def _output(
        self, table: jax.Array, words: jax.Array, layers: list[list[jax.Array]], index: jax.Array, weights: jax.Array
    ) -> list[jax.Array]:
        """Reads the layers of each direction, [T, R, P], in the order of the text, as parts of the output [N, P]."""

        def read(array: jax.Array, at: jax.Array) -> jax.Array:
            return array.reshape(-1, *array.shape[2:]).at[at].get(mode="fill", fill_value=0)

        directions = range(len(words))
        # Numbers outside of the table, for words that are not in this call, are read as zeros.
        rows = [words[d].reshape(-1).at[index[d]].get(mode="fill", fill_value=len(table)) for d in directions]
        tokens = [table.at[row].get(mode="fill", fill_value=0) for row in rows]
        if not self.mixed:
            parts = [read(layers[d][j], index[d]) for j in range(len(layers[0])) for d in directions]
            return [tokens[0], *parts]
        return [
            weights[0] * tokens[d] + sum(weights[j] * read(layer, index[d]) for j, layer in enumerate(layers[d], 1))
            for d in directions
        ]


_INPUTS = _Inputs(PartitionSpec(None, None, AXIS), _BY_ROW, _BY_ROW, _BY_ROW, _BY_ROW, REPLICATED, REPLICATED)


@partial(jax.jit, static_argnames="program")
def _run(
    program: _Program, params: Any, table: jax.Array, inputs: _Inputs, state: _State, weights: jax.Array
) -> tuple[jax.Array, jax.Array, _State]:
    mapped = jax.shard_map(
        program.run,
        mesh=program.mesh,
        in_specs=(REPLICATED, REPLICATED, _INPUTS, _BY_ROW, REPLICATED),
        out_specs=(ROWS, ROWS, _BY_ROW),
        check_vma=False,  # under `standard_numerics`, constants are concrete, which cannot be marked as varying
    )
    return mapped(params, table, inputs, state, weights)


class PendingOutput:
    """The computation of a group of sentences, which goes on while the host does other things."""

    def __init__(self, words: int, slots: np.ndarray, state: _State) -> None:
        self._words, self._slots, self.state = words, slots, state  # how many words; see `Packing`; after the last call
        # Of the calls whose output is on the devices, the numbers of the words in it, how many of these each device
        # has, the vectors, and whether they are finite.
        self._calls: list[tuple[np.ndarray | slice, list[int], list[jax.Array]]] = []
        self._collected: list[np.ndarray] = []  # the output of the calls before these

    def add(self, words: np.ndarray | slice, counts: list[int], outputs: list[jax.Array]) -> None:
        """Adds a call that was started; waits for the first of more than `_PENDING` calls."""
        self._calls.append((words, counts, outputs))
        if len(self._calls) > _PENDING:
            self._collect()

    def _collect(self) -> None:
        words, counts, outputs = self._calls.pop(0)
        of_devices = [np.split(np.asarray(output), len(counts)) for output in outputs]
        parts = [[part[:count] for part, count in zip(one, counts, strict=True)] for one in of_devices]
        part, are_finite = (one[0] if len(one) == 1 else np.concatenate(one) for one in parts)
        if not self._collected and not self._calls:  # a single call has all words
            self._collected = [part, are_finite]
            return
        if not self._collected:
            self._collected = [np.zeros((self._words, part.shape[1]), part.dtype), np.ones(self._words, bool)]
        self._collected[0][words] += part
        self._collected[1][words] &= are_finite

    @standard_numerics()
    def vectors(self) -> list[np.ndarray]:
        """Waits for the output: that of all words of all sentences, [words, …], and whether it is finite [words]."""
        while self._calls:
            self._collect()
        return self._collected

    @standard_numerics()
    def carry(self) -> Tree:
        """Waits for the states at the ends of the sentences, NumPy arrays [2, n, …]."""
        states = jax.tree.map(lambda leaf: np.asarray(leaf)[:, self._slots], self.state.sentences or [])
        return {f"layer_{j}": state for j, state in enumerate(states)}


class Engine:
    """Computes the vectors of sentences on the devices of a mesh.

    Attributes:
      words: the table of word vectors.
      most_words: the words and sentence boundaries that are run together at most.
    """

    def __init__(self, model: BiLM, params: Tree, mesh: Mesh, one_program: bool = False) -> None:
        # With `one_program`, accelerators run every text by the program for tens of sentences: an accelerator compiles
        # each one for seconds, and task models embed a million words at most.
        self.config, self._model, self._mesh = model.config, model, mesh
        self._platform = Platform.of(mesh, model.precision, one_program)
        self.words = WordTable(model, self._put({"token_encoder": params["token_encoder"]}, REPLICATED), mesh)
        self._params = self._put(self._prepared(params), REPLICATED)
        self.most_words = min(int(FILL * self._platform.shapes[-1].words * mesh.size), self.words.capacity)
        self._zeros: dict[Shape, list[State]] = {}  # the state in which rows begin

    def _prepared(self, params: Tree) -> Any:  # of each direction, those of each layer as the program reads them
        def prepared(path: Any, leaf: Any) -> Any:
            array: Any = np.asarray(leaf)
            if not self._platform.together:
                array = np.ascontiguousarray(array.T) if array.ndim == 2 else array[:, None]
            return array if path[-1].key == "bias" else self._model.precision.operand(array)

        layers = range(self.config.lstm.layers)
        stacks = [[params[name][f"layer_{j}"] for j in layers] for name in self.config.directions]
        stacks = jax.tree.map_with_path(prepared, stacks)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *stacks) if self._platform.together else stacks

    def _put(self, tree: Any, specs: Any) -> Any:
        return jax.device_put(tree, jax.tree.map(partial(NamedSharding, self._mesh), specs))

    def groups(self, lengths: np.ndarray, carried: bool = False) -> Iterator[np.ndarray]:
        """Yields the numbers of the sentences of `lengths` words [n] that are run together, in their order.

        They are at most as many as fill the largest program, or the table of word vectors; or, if their states are
        kept (`carried`), as many as the states have room for.
        """
        largest = self._platform.shapes[-1]
        is_long = lengths + 2 > largest.steps  # in a group with others, these would make all rows as long
        for numbers in np.flatnonzero(~is_long), np.flatnonzero(is_long):
            ends = np.cumsum(lengths[numbers] + 2)
            groups = -(-ends[-1] // self.most_words) if len(numbers) else 0
            cuts = np.searchsorted(ends, ends[-1] * np.arange(1, groups) // groups, "right") if groups else []
            for part in np.split(numbers, cuts):
                most = largest.sentences if carried else max(len(part), 1)
                yield from (part[first : first + most] for first in range(0, len(part), most))

    @standard_numerics()
    def start(
        self,
        sentences: Sequence[Sequence[str]],
        dtype: str = "float32",
        weights: np.ndarray | None = None,
        *,
        bos_eos: bool = False,
        carry: Tree | None = None,
    ) -> PendingOutput:
        """Starts the computation of a group of sentences (`groups`), at least one, and does not wait for its result.

        With the `weights` [L+1] of the layers, the output of a word is the weighted sum of its layers, [2P]. Without
        them, it is [P + L * 2P]: the token vector once, then [forward; backward] of every LSTM layer. With `bos_eos`,
        sentence boundaries have vectors too. The `carry` has the states in which the sentences begin, NumPy arrays
        [2, n, …]; without it, these are zeros, and the states at the ends are not kept.
        """
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences)) + 2
        at = arrange(lengths, self._platform, self._mesh.size, len(self.config.directions), carry is not None)
        # Of a group that takes several calls, each has half as many steps, since each word may be in two of them.
        per_call = at.shape.steps if at.longest <= at.shape.steps else at.shape.steps // 2
        firsts = range(0, at.longest, per_call)
        kept = np.ones_like(at.is_boundary) if bos_eos else ~at.is_boundary
        of_layers = np.zeros(self.config.lstm.layers + 1) if weights is None else weights
        form = self._platform.together, at.shape, dtype, weights is not None
        program = _Program(self.config, self._model.precision, self._mesh, *form)
        with self.words.lock:
            words = self.words.rows([BEGIN_SENTENCE_WORD, END_SENTENCE_WORD, *itertools.chain.from_iterable(sentences)])
            arrays = at.arrays(words, firsts[-1] + at.shape.steps, at.shape.rows[-1] * self._mesh.size)
            running = PendingOutput(int(kept.sum()), at.slot, self._state(at.shape, at.slot, carry))
            for first in firsts:
                chosen, counts, index = at.index_of(kept, first, per_call, self._mesh.size)
                steps, rows = min(per_call, at.longest - first), at.shape.rows.index(at.rows)
                words, begins, ends, mask = (array[..., first : first + at.shape.steps, :] for array in arrays)
                inputs = _Inputs(words, begins, ends, mask, index, np.int32(steps), np.int32(rows))
                on_devices = self.words.vectors, self._put(inputs, _INPUTS), running.state
                *outputs, running.state = _run(program, self._params, *on_devices, of_layers.astype(np.float32))
                jax.copy_to_host_async(outputs)
                running.add(chosen, counts, outputs)
        return running

    def _state(self, shape: Shape, sentences: np.ndarray, carry: Tree | None) -> _State:
        """Returns the states in which the rows, and with a carry the sentences, begin, on the devices."""

        def zeros(number: int) -> list[State]:
            return list(initial_carry(self.config, number * self._mesh.size, np.zeros).values())

        if shape not in self._zeros:
            self._zeros[shape] = self._put(zeros(shape.rows[-1]), _BY_ROW)
        if carry is None:
            return _State(self._zeros[shape], None)
        states = zeros(shape.sentences)
        for leaf, given in zip(jax.tree.leaves(states), jax.tree.leaves(carry), strict=True):
            leaf[:, sentences] = given
        return _State(self._zeros[shape], self._put(states, _BY_ROW))
