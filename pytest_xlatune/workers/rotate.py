"""Let the programs of several profiles take turns in an unchanged trainer.

    python rotate.py SPEC -- SCRIPT [ARGUMENT ...]
    python rotate.py SPEC -- -m MODULE [ARGUMENT ...]
    XLATUNE_ROTATION=SPEC PYTHONPATH=FOLDER:$PYTHONPATH ...    this file is FOLDER/sitecustomize.py

SPEC is the JSON of a `RotationSpec` in `model/rotation.py`, which also reads the journal that this
program writes beside it. `jax.jit` is wrapped as soon as the trainer has imported JAX. The step
function, found by its name, runs unchanged for the first calls. Then the lowered step is compiled
once for each program, with the options of that program, and each call runs the program whose turn
it is. A step that the trainer compiles itself, by `lower().compile()`, is replaced in the same way.

Every process compiles the same list and counts its own calls, so the processes of a trainer stay in
step. They agree once, after compiling, on the programs that can run. No step is timed here, and no
decision depends on a measurement. What may end the process is recorded before it is tried.

This file imports only the standard library and the JAX of the trainer, 0.6 to 0.12.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import operator
import os
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "XLATUNE_ROTATION"  # variable with the path of the spec if this is a sitecustomize
RANK = "{rank}"
# An option without effect here: the number of modules that a dump may have. Its value differs for
# each program. Otherwise JAX's caches would return the baseline for a copy of it, and the copy must
# get another place in memory.
MARK, FIRST_MARK = "xla_dump_max_hlo_modules", 1_000_000
_AGREE_S = 4 * 3600  # seconds to wait until every process has compiled the list
_MOST_TEXT, _MOST_NAMES = 600, 10  # characters of a message, and names in it
_PART = 0.25  # a function may be a part of the step if it returns this share of the step's results
_SWITCH = {"true": True, "1": True, "t": True, "": True, "false": False, "0": False, "f": False}
# Since 0.11.2 XLA_FLAGS still accepts the old names of three options and sets the new ones; the
# options of a compilation have only the new names.
_OLD, _NEW = "xla_gpu_enable_pipelined_", "xla_gpu_pipeline_"
_PIPELINES = ("COLLECTIVE_PIPELINING_MODE_OFF", "COLLECTIVE_PIPELINING_MODE_ON")
_ON = frozenset(text for text, is_on in _SWITCH.items() if is_on)


class _Journal:
    """Appends lines of JSON to a file; lines wait until the index of the process is known."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self.folder, self.pattern = folder, pattern
        self.waiting: list[dict[str, Any]] = []
        self.file = -1
        # A line was lost, so no more are written: they would assign its steps to other programs.
        self.is_cut = False

    def write(self, event: str, **fields: Any) -> None:
        line = {"event": event, "pid": os.getpid(), **fields}
        if self.file < 0:
            self.waiting.append(line)
        else:
            self._write(line)

    def open(self, rank: int) -> None:
        """Open the file of a rank, and write the lines that waited.

        Raises:
            OSError: the file cannot be written.
        """
        path = self.folder / self.pattern.replace(RANK, str(rank))
        # only the owner of the job may write; a link is not followed
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self.file = os.open(path, flags, 0o600)
        waiting, self.waiting = self.waiting, []
        for line in waiting:
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        if self.is_cut:
            return
        text = (json.dumps(line) + "\n").encode()
        try:
            self.is_cut = os.write(self.file, text) < len(text)
        except OSError as error:  # a full disk must not end the trainer
            self.is_cut = True
            with suppress(OSError):
                sys.stderr.write(f"rotate.py: the journal ends here: {error}\n")


class TurnTaker:
    """Finds the step in one process, compiles its programs, and lets them take turns."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.name: str = spec.get("step_function", "")
        self.first: int = spec.get("first_step", 3)
        self.turn_steps: int = spec["turn_steps"]
        self.order: list[int] = spec["order"]
        self.programs: list[dict[str, Any]] = spec["programs"]
        self.limit_bytes: int = spec.get("memory_limit_bytes", 0)
        self.journal = _Journal(folder, spec["journal"])
        self.step: _RotatedStep | None = None  # None until it is found
        self.candidates: list[_RotatedStep] = []  # functions that may be the step, until then
        self.is_off = False  # whether nothing rotates in this process
        self.is_busy = False  # whether this class itself is calling JAX
        self.total_calls = 0  # of all candidates together
        self.jax: Any = None  # the module; None until it is imported
        self.journal.write("start", turn_steps=self.turn_steps)
        atexit.register(self.end)

    # --- wrapping JAX -------------------------------------------------------------------------

    def install(self) -> None:
        """Wrap `jax.jit` now, or as soon as JAX is imported."""
        if "jax" in sys.modules:
            self.wrap(sys.modules["jax"])
        sys.meta_path.insert(0, _ImportHook("jax", self.wrap))

    def wrap(self, jax: Any) -> None:
        """Replace the public functions from which a trainer gets its step."""
        self.jax = jax
        self.journal.write("jax", version=str(getattr(jax, "__version__", "")))
        try:
            jax.jit = self._wrapping(jax.jit)
            lowered = jax.stages.Lowered
            lowered.compile = self._compiling(lowered.compile)
        except (AttributeError, TypeError) as error:
            self.stop(f"this JAX has no place for the hook: {_words(error)}")

    def _wrapping(self, jit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(jit)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if callable(kwargs.get("fun")):
                return self._step_of(jit(*args, **kwargs), kwargs["fun"], kwargs)
            if not args or not callable(args[0]):  # a decorator with its arguments
                decorate = jit(*args, **kwargs)
                return lambda fun: self._step_of(decorate(fun), fun, kwargs)
            return self._step_of(jit(*args, **kwargs), args[0], kwargs)

        return wrapped

    def _step_of(self, jitted: Any, fun: Any, keywords: dict[str, Any]) -> Any:
        """Return the function unchanged, or its replacement if it may be the step."""
        name = _name_of(fun)
        if self.is_off or self.is_busy or (self.name and not self._has_step_name(name)):
            return jitted
        if self.step is not None:
            return jitted
        return self._add_candidate(_RotatedStep(self, jitted, name, static=_static(fun, keywords)))

    def _has_step_name(self, name: str) -> bool:
        # JAX replaces characters that a module's name cannot have:  <lambda> is jit__lambda
        return _alphanumeric(name) == _alphanumeric(self.name)

    def _add_candidate(self, candidate: _RotatedStep) -> _StepProxy:
        self.candidates.append(candidate)
        return _StepProxy(candidate)

    def _compiling(self, compile_it: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_it)
        def wrapped(lowered: Any, *args: Any, **kwargs: Any) -> Any:
            compiled = compile_it(lowered, *args, **kwargs)
            # compiler_options may be passed by position
            options = args[0] if args else kwargs.get("compiler_options")
            if self.is_off or self.is_busy:
                return compiled
            name = _module_of(lowered).removeprefix("jit_")
            if (self.name and not self._has_step_name(name)) or self.step is not None:
                return compiled
            return self._add_candidate(
                _RotatedStep(self, compiled, name, lowered=lowered, options=dict(options or {}))
            )

        self.compile_it = compile_it
        return wrapped

    # --- finding the step ---------------------------------------------------------------------

    def is_step(self, caller: _RotatedStep) -> bool:
        """Return whether a function that was called often enough is the step.

        Without a name for the step, it is the function with the largest arguments and results
        together, because both contain the state, among those with about as many calls. Every
        process gets the same answer. The arguments alone would not be enough: those of an
        evaluation in each step may be as large.
        """
        if self.step is None:
            if self.name:
                self.step = caller
            else:
                called_as_often = (
                    candidate
                    for candidate in self.candidates
                    if candidate.calls + 1 >= caller.calls
                )
                self.step = max(called_as_often, key=lambda candidate: candidate.size_bytes)
            parts = [candidate.name for candidate in self.candidates if self._is_part(candidate)]
            if parts and not self.name:
                with suppress(OSError):
                    self.journal.open(self.jax.process_index())
                names = ", ".join(dict.fromkeys([*parts, self.step.name][:_MOST_NAMES]))
                self.stop(f"a step of the trainer is several programs: {names}")
            self.candidates = []  # else they stay in memory, and some trainers make one per batch
        return self.step is caller and not self.is_off

    def _is_part(self, other: _RotatedStep) -> bool:
        """Return whether a function does a part of each step; flags would act only on the rest.

        Examples are gradients that another program applies, and a loss that is differentiated
        outside of any program. A function inside a program is traced only once or twice. An
        evaluation returns next to nothing, and a function that makes a batch has few leaves.
        """
        step = self.step
        if step is None or other is step:
            return False
        is_as_often = other.calls + 1 >= step.calls
        has_state = (
            other.result_bytes >= _PART * step.result_bytes
            and other.result_leaves >= _PART * step.result_leaves
            and other.result_leaves > 1
        )
        return (is_as_often and has_state) or len(other.traced_at) > self.first

    def begin(self, step: _RotatedStep, args: Any, kwargs: Any) -> list[Any] | None:
        """Compile every program and return those that can run; None if nothing can rotate."""
        self.is_busy = True
        programs: list[Any] = [None] * len(self.programs)
        try:
            self.journal.open(self.jax.process_index())
            if getattr(self.jax.config, "jax_disable_jit", False):
                raise RuntimeError("jax_disable_jit is set, so no program is compiled")  # noqa: TRY301
            self.journal.write("found", name=step.name, device=self._device())
            lowered = step.lower(args, kwargs)
            for at, program in self._compiled(lowered, step.options):
                programs[at] = program
        except Exception as error:  # noqa: BLE001 - the trainer continues without turns
            self.stop(f"{type(error).__name__}: {_words(error)}")
        try:
            # the other processes wait for an answer, whatever happened in this one
            return self._agreed(programs)
        except Exception as error:  # noqa: BLE001 - the key-value store may not answer
            self.stop(f"the processes could not agree: {_words(error)}")
            return None
        finally:
            self.is_busy = False

    def _device(self) -> str:
        """Return the platform and the kind of this process's first device; "" if unknown."""
        with suppress(Exception):
            first = self.jax.local_devices()[0]
            kind = str(first.device_kind)
            return first.platform if kind == first.platform else f"{first.platform} {kind}"
        return ""

    def stop(self, words: str) -> None:
        """Let the trainer run without turns from here on, and record why."""
        if self.is_off:
            return
        self.is_off = True
        self.journal.write("trouble", words=words)
        if self.journal.file < 0:
            sys.stderr.write(f"rotate.py: nothing rotates: {words}\n")

    # --- compilation --------------------------------------------------------------------------

    def _compiled(self, lowered: Any, options: dict[str, Any]) -> Iterator[tuple[int, Any]]:
        """Yield each program that can run, with its index in the list.

        Copies of the baseline come last, so that less time is lost if a profile aborts the process.
        """
        baseline_shardings: Any = None
        baseline_bytes = 0
        first_with: dict[str, str] = {}  # digest of the optimised text -> id of the first program
        copies_last = sorted(range(1, len(self.programs)), key=self._is_copy)
        for at in (0, *copies_last):
            program = self.programs[at]
            self.journal.write("compile", program=program["id"])
            began_s = time.perf_counter()
            try:
                compiled = self._compile(lowered, options, program["options"], at)
                shardings = _shardings(compiled)
                if at == 0:
                    baseline_shardings = shardings
                if shardings != baseline_shardings:
                    raise ValueError("its arguments or results are sharded otherwise")  # noqa: TRY301
            except Exception as error:  # noqa: BLE001 - whatever a compiler raises
                self.journal.write("refused", program=program["id"], words=_words(error))
                continue
            took_s = round(time.perf_counter() - began_s, 3)
            all_bytes, own_bytes = _program_memory(compiled)
            first = first_with.setdefault(_digest(compiled) or program["id"], program["id"])
            facts: dict[str, Any] = {"same_as": first} if first != program["id"] else {}
            if all_bytes:
                facts["memory_bytes"] = all_bytes
            self.journal.write("compiled", program=program["id"], compile_s=took_s, **facts)
            if at == 0:
                baseline_bytes = all_bytes
            elif all_bytes > baseline_bytes and self._is_too_large(all_bytes, own_bytes):
                self.journal.write("left_out", program=program["id"], memory_bytes=all_bytes)
                continue
            yield at, compiled

    def _is_copy(self, at: int) -> bool:
        return not self.programs[at]["options"]

    def _compile(
        self, lowered: Any, trainer_options: dict[str, Any], options: dict[str, str], at: int
    ) -> Any:
        """Compile with options, each in the first spelling that the compiler accepts."""
        chosen: dict[str, Any] = {**trainer_options, **options, MARK: FIRST_MARK + at}
        respelled: set[str] = set()  # names of options that have their second spelling
        while True:
            try:
                return self.compile_it(lowered, compiler_options=chosen)
            except Exception as error:
                text = str(error)
                # No such compile option: 'xla_gpu_enable_pipelined_all_gather'
                unknown = text.partition("No such compile option: '")[2].partition("'")[0]
                if unknown in options and unknown.startswith(_OLD) and unknown in chosen:
                    is_on = chosen.pop(unknown).lower() in _ON
                    chosen[unknown.replace(_OLD, _NEW, 1)] = _PIPELINES[is_on]
                    continue
                # While setting option xla_gpu_enable_triton_gemm, 'true' is not a valid bool value.
                refused = text.partition("While setting option ")[2].partition(",")[0]
                spelling = _second_spelling(options.get(refused, ""), text)
                if spelling is None or refused in respelled:
                    raise
                respelled.add(refused)
                chosen[refused] = spelling

    def _is_too_large(self, all_bytes: int, own_bytes: int) -> bool:
        """Return whether a program needs more memory than there is."""
        if self.limit_bytes:
            return all_bytes > self.limit_bytes
        free_bytes = min(map(_free_bytes, self.jax.local_devices()))
        return 0 <= free_bytes < own_bytes

    def _agreed(self, programs: list[Any]) -> list[Any] | None:
        """Return the programs that every process can run; None if the baseline cannot run."""
        # one character for each program: 1 if this process can run it, else 0
        own_mask = "".join("1" if program is not None else "0" for program in programs)
        masks = [own_mask, *self._masks_of_others(own_mask)]
        for at, program in enumerate(self.programs):
            if programs[at] is not None and any(mask[at : at + 1] != "1" for mask in masks):
                self.journal.write(
                    "refused", program=program["id"], words="another process cannot run it"
                )
                programs[at] = None
        if programs[0] is None:
            self.stop("the baseline itself cannot be compiled anew")
            return None
        return programs

    def _masks_of_others(self, own_mask: str) -> list[str]:
        """Return the masks of the other processes, once each of them has compiled its list."""
        count = self.jax.process_count()
        if count == 1:
            return []
        from jax._src import distributed  # its key-value store has no public name

        client: Any = distributed.global_state.client
        rank = self.jax.process_index()
        client.key_value_set(f"xlatune/rotation/{rank}", own_mask)
        return [
            client.blocking_key_value_get(f"xlatune/rotation/{other}", _AGREE_S * 1000)
            for other in range(count)
            if other != rank
        ]

    # --- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Record how many calls there were; a process that is killed records nothing."""
        with suppress(OSError, ValueError):
            if self.journal.file < 0:
                if self.jax is None:
                    return
                # JAX may not know the index of a process that ends so early
                self.journal.open(int(os.environ.get("SLURM_PROCID") or 0))
            if self.step is None and not self.is_off:
                seen = sorted({candidate.name for candidate in self.candidates})
                names = ", ".join(seen[:_MOST_NAMES]) or "none"
                self.stop(f"no call of {self.name or 'a step'} was due; functions seen: {names}")
            self.journal.write("end", calls=self.step.calls if self.step else 0)


class _StepProxy:
    """Is called by the trainer instead of its step, and has all attributes of the step."""

    def __init__(self, step: _RotatedStep) -> None:
        self._xlatune = step
        functools.update_wrapper(self, step.plain, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._xlatune.run(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_xlatune":  # a copy whose attributes are not set yet
            raise AttributeError(name)
        return getattr(self._xlatune.plain, name)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:  # in another process, it is the trainer's own step
        return operator.itemgetter(0), ((self._xlatune.plain,),)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


class _RotatedStep:
    """Runs the trainer's own program first, and then the program whose turn it is.

    `run` is the method for the present phase: `_run_before_turns`, `_run_turn` or `_run_plain`.
    """

    def __init__(
        self,
        rotation: TurnTaker,
        plain: Any,
        name: str,
        *,
        lowered: Any = None,
        options: dict[str, Any] | None = None,
        static: tuple[frozenset[int], frozenset[str]] = (frozenset(), frozenset()),
    ) -> None:
        self._rotation, self.plain, self.name = rotation, plain, name  # plain: the trainer's step
        self._lowered = lowered  # the lowered step of a program that the trainer compiled itself
        self.options = options or {}  # the options of the trainer's own compilation
        self._static_at, self._static_names = static  # positions and names of static arguments
        self._static: Any = None  # their values in the programs
        self.run: Callable[..., Any] = self._run_before_turns
        self.calls = self.size_bytes = self.result_bytes = self.result_leaves = 0
        self.traced_at: set[int] = set()  # values of `total_calls` at which it was traced
        self._programs: list[Any] = []  # compiled, in the order of the spec; None: cannot run
        self._program: Any = None  # the program whose turn it is
        self._at = 0  # its index
        self._turn_end = 0  # number of the first call after its turn
        self._has_run = {0}  # indexes of programs that have run without an error
        self._has_raised = False  # whether a call during the turns raised an exception
        self.kinds: Counter[tuple[str, ...]] = Counter()  # kinds of arguments of the first calls

    def lower(self, args: Any, kwargs: Any) -> Any:
        """Return the lowered step for these arguments."""
        self._static = self._parted(args, kwargs)[1]
        if self._lowered is not None:
            return self._lowered
        return self.plain.lower(*args, **kwargs)

    def _parted(self, args: Any, kwargs: Any) -> tuple[tuple[Any, Any], Any]:
        """Return the dynamic arguments, and the static ones; both by position and by name."""
        at, names = self._static_at, self._static_names
        static = (
            [argument for place, argument in enumerate(args) if place in at],
            {name: argument for name, argument in kwargs.items() if name in names},
        )
        dynamic = (
            tuple(argument for place, argument in enumerate(args) if place not in at),
            {name: argument for name, argument in kwargs.items() if name not in names},
        )
        return dynamic, static

    def _run_before_turns(self, *args: Any, **kwargs: Any) -> Any:
        """Run the trainer's own program until the turns begin."""
        rotation = self._rotation
        if rotation.is_off or rotation.is_busy or rotation.step not in (None, self):
            return self.plain(*args, **kwargs)
        leaves = rotation.jax.tree_util.tree_leaves((args, kwargs))
        if any(isinstance(leaf, rotation.jax.core.Tracer) for leaf in leaves):
            self.traced_at.add(rotation.total_calls)
            return self.plain(*args, **kwargs)  # it is traced as a part of another function
        kind = tuple(map(_kind_of, leaves))
        # Programs are compiled for the most frequent arguments, not for an evaluation's or those of
        # a short batch.
        is_usual = self.kinds[kind] == max(self.kinds.values(), default=0)
        if self.calls >= rotation.first and is_usual and rotation.is_step(self):
            programs = rotation.begin(self, args, kwargs)
            self.run = self._run_plain
            if programs is not None:
                self._programs, self.run = programs, self._run_turn
                self._turn_end = self.calls
            return self.run(*args, **kwargs)
        argument_bytes = _size_bytes(leaves)  # before the call, which may delete the arguments
        result = self.plain(*args, **kwargs)
        self.kinds[kind] += 1  # a call that raised does not count as a step
        self.calls += 1
        rotation.total_calls += 1
        result_leaves = rotation.jax.tree_util.tree_leaves(result)
        self.result_leaves, self.result_bytes = len(result_leaves), _size_bytes(result_leaves)
        self.size_bytes = argument_bytes + self.result_bytes
        return result

    def _run_plain(self, *args: Any, **kwargs: Any) -> Any:
        """Run the trainer's own program, and count the call."""
        self.calls += 1
        return self.plain(*args, **kwargs)

    def _run_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program whose turn it is."""
        if self._has_raised:
            return self._run_plain(*args, **kwargs)
        call = self.calls
        self.calls = call + 1
        if call >= self._turn_end:
            self._begin_turn(call)
        try:
            return self._run_program(call, args, kwargs)
        except Exception as error:
            # If the trainer continues, its log may lack this call, so that steps could not be
            # assigned to later turns.
            self._has_raised = True
            self._rotation.journal.write("raised", call=call, words=_words(error))
            raise

    def _run_program(self, call: int, args: Any, kwargs: Any) -> Any:
        dynamic = (args, kwargs)
        if self._static_at or self._static_names:
            dynamic, static = self._parted(args, kwargs)
            if static != self._static:
                return self._run_odd_call(call, args, kwargs)
        try:
            result = self._program(*dynamic[0], **dynamic[1])
        except (TypeError, ValueError):  # not an error of XLA: the arguments differ
            if self._is_any_deleted(dynamic):
                raise
            return self._run_odd_call(call, args, kwargs)
        if self._at not in self._has_run:  # an error of its first call is raised in its turn
            self._rotation.jax.block_until_ready(result)
            self._has_run.add(self._at)
        return result

    def _begin_turn(self, call: int) -> None:
        rotation = self._rotation
        turn = (call - rotation.first) // rotation.turn_steps
        at = rotation.order[turn % len(rotation.order)]
        self._at = at if self._programs[at] is not None else 0
        self._program = self._programs[self._at]
        self._turn_end = rotation.first + (turn + 1) * rotation.turn_steps
        name = rotation.programs[self._at]["id"]
        rotation.journal.write("turn", program=name, first_call=call)

    def _run_odd_call(self, call: int, args: Any, kwargs: Any) -> Any:
        """Run the trainer's own program, because the programs are compiled for other arguments."""
        self._rotation.journal.write("odd_call", call=call)
        return self.plain(*args, **kwargs)

    def _is_any_deleted(self, arguments: Any) -> bool:
        leaves = self._rotation.jax.tree_util.tree_leaves(arguments)
        return any(hasattr(leaf, "is_deleted") and leaf.is_deleted() for leaf in leaves)


def _program_memory(compiled: Any) -> tuple[int, int]:
    """Return the device memory of a program while it runs, with and without its arguments.

    In bytes; 0 if it is unknown. The arguments are in memory already.
    """
    with suppress(Exception):  # a plugin that does not know the sizes may raise anything
        sizes = compiled.memory_analysis()
        new_bytes = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        own_bytes = new_bytes + sizes.temp_size_in_bytes + sizes.generated_code_size_in_bytes
        return own_bytes + sizes.argument_size_in_bytes, own_bytes
    return 0, 0


def _kind_of(leaf: Any) -> str:
    """Return what a program is compiled for: float32[8,32], or int, or the text of other values."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    if isinstance(leaf, int | float | complex) and not isinstance(leaf, bool):
        return type(leaf).__name__
    return repr(leaf)[: _MOST_NAMES * 4]


def _size_bytes(leaves: Sequence[Any]) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves)


def _free_bytes(device: Any) -> int:
    """Return the free memory of a device in bytes; -1 if it is unknown."""
    with suppress(Exception):
        stats = device.memory_stats()
        return max(int(stats["bytes_limit"]) - int(stats["bytes_in_use"]), 0)
    return -1


def _shardings(compiled: Any) -> Any:
    """Return how the arguments and results of a program are sharded; None if unknown."""
    with suppress(Exception):
        return [str(compiled.input_shardings), str(compiled.output_shardings)]
    return None


def _digest(compiled: Any) -> str:
    """Return a digest of the optimised text; "" if there is none."""
    with suppress(Exception):
        text = compiled.as_text()
        return hashlib.sha256(text.encode()).hexdigest() if text else ""
    return ""


def _second_spelling(text: str, refusal: str) -> Any:
    """Return another spelling of a value that the compiler refused; None if none is known."""
    if "is not a valid bool value" in refusal:
        return _SWITCH.get(text.lower())
    if "is not a valid enum value" in refusal and text.upper() != text:
        return text.upper()
    return None


def _static(fun: Any, keywords: dict[str, Any]) -> tuple[frozenset[int], frozenset[str]]:
    """Return positions and names of static arguments; like JAX, infer one from the other."""
    argnums, argnames = keywords.get("static_argnums"), keywords.get("static_argnames")
    at = {argnums} if isinstance(argnums, int) else set(argnums or ())
    names = {argnames} if isinstance(argnames, str) else set(argnames or ())
    if not at and not names:
        return frozenset(), frozenset()
    with suppress(TypeError, ValueError):
        positional = [
            parameter
            for parameter in inspect.signature(fun).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        at = {place % len(positional) if place < 0 else place for place in at}
        if argnums is None:
            at |= {place for place, parameter in enumerate(positional) if parameter.name in names}
        if argnames is None:
            names |= {parameter.name for place, parameter in enumerate(positional) if place in at}
    return frozenset(at), frozenset(names)


def _name_of(fun: Any) -> str:
    """Return the name that JAX gives a function's module, without `jit_`."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def _alphanumeric(name: str) -> str:
    return "".join(character for character in name if character.isalnum())


def _module_of(lowered: Any) -> str:
    """Return the name of a lowered module: jit_train_step."""
    with suppress(Exception):
        return str(lowered.compiler_ir().operation.attributes["sym_name"].value)
    return ""


def _words(error: BaseException) -> str:
    """Return the message of an error in one line, or else its class."""
    return " ".join(str(error).split())[:_MOST_TEXT] or type(error).__name__


class _ImportHook(importlib.abc.MetaPathFinder):
    """Calls a function with a module as soon as the module has been imported."""

    def __init__(self, name: str, hook: Callable[[Any], None]) -> None:
        self.name, self.hook = name, hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        self.name = ""  # once
        for finder in sys.meta_path:
            spec = None
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _HookedLoader(spec.loader, self.hook)
                return spec
        return None


class _HookedLoader(importlib.abc.Loader):
    """Loads a module by its own loader, which the module keeps, and then calls a hook."""

    def __init__(self, loader: Any, hook: Callable[[Any], None]) -> None:
        self.loader, self.hook = loader, hook

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.hook(module)


def read(path: Path) -> TurnTaker:
    """Read a spec, and install the hook.

    Raises:
        SystemExit: the file cannot be read, or is no spec.
    """
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        rotation = TurnTaker(spec, path.absolute().parent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(
            f"rotate.py: {path} is no rotation: {type(error).__name__}: {error}"
        ) from None
    rotation.install()
    return rotation


def main(argv: Sequence[str]) -> None:
    """Run a trainer as its own interpreter would, with the hook in place.

    Raises:
        SystemExit: the arguments are not SPEC -- SCRIPT or SPEC -- -m MODULE.
    """
    words = list(argv)
    if len(words) < 3 or words[1] != "--" or (words[2] == "-m" and len(words) < 4):  # noqa: PLR2004
        raise SystemExit("usage: rotate.py SPEC -- (SCRIPT | -m MODULE) [ARGUMENT ...]")
    read(Path(words[0]))
    trainer = words[2:]
    # Python has put the folder of this file first, where the folder of the trainer must be
    if not sys.flags.safe_path:
        sys.path.pop(0)
    if trainer[0] == "-m":
        if not sys.flags.safe_path:
            sys.path.insert(0, str(Path.cwd()))
        sys.argv = trainer[1:]
        runpy.run_module(trainer[1], run_name="__main__", alter_sys=True)
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(trainer[0]).resolve().parent))
    sys.argv = trainer
    runpy.run_path(trainer[0], run_name="__main__")


def customize() -> None:
    """Act as a sitecustomize: install the hook, then run the next sitecustomize on the path."""
    path = os.environ.get(VARIABLE)
    if path:
        try:
            read(Path(path))
        except SystemExit as error:  # an exception here would keep the interpreter from starting
            sys.stderr.write(f"{error}\n")
    this_folder = Path(__file__).resolve().parent
    other_folders = [folder for folder in sys.path if Path(folder or ".").resolve() != this_folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", other_folders)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "sitecustomize":
    customize()
