"""Runs the segments of sessions that allow results within a tolerance: op by op, or with compiled regions."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

from djinn_lab.protocol.compiling import OP_BY_OP
from djinn_lab.protocol.worker import RegionCompiled, Resume, RunSegment
from djinn_lab.srg.program import Program, Scalar, decode_program, encode_program
from djinn_lab.srg.region_programs import compilable
from djinn_lab.srg.regions import RECORDED_SIZE, REGION_SIZE, Region, RegionSize, find_regions
from djinn_lab.units import format_seconds
from djinn_lab.worker.compiled.libraries import Libraries, Library
from djinn_lab.worker.compiled.plan import OTHER_NUMBERS, OTHER_SIZES, CompiledPlan, after, same_numbers
from djinn_lab.worker.compiled.region_call import RegionCall
from djinn_lab.worker.compiled.sizes import Resized
from djinn_lab.worker.compiled.trial import RUNS_BEFORE, Trial, Way
from djinn_lab.worker.interpreter import Interpreter
from djinn_lab.worker.outcome import Outcome, Stop

PROGRAMS_MAX, NODES_KEPT_MAX = 256, 200_000
"""So many programs, with so many nodes, are followed at a time; those that ran longest ago are forgotten."""
NODES_MAX = 20_000
SIZES_BEFORE = 3
"""Programs of one structure that are followed as one from then on, unless they repeat."""
NO_PART = "no part of it can be compiled, or none takes long enough"
NOTHING_IN_COMMON = (NO_PART, OTHER_NUMBERS, OTHER_SIZES)
"""For one of these reasons programs of one structure are followed by themselves again."""

ShouldStop = Callable[[], Stop | None]
Report = Callable[[int, int], None]


class FollowedProgram:
    """One program of the worker's sessions, by its key and their tolerance; or all programs of one structure,
    whatever their sizes. ``regions``, ``libraries``: run parallel, once its regions were asked for. ``why``:
    a region is left out that was compiled. ``keys``: of a structure's programs, the first few."""

    def __init__(self, key: bytes, tolerance: float) -> None:
        self.key = key
        self.tolerance = tolerance
        self.keys: set[bytes] = set()
        self.why = ""
        self.anew = False
        self.trial = Trial()
        self.nodes = 0
        self.first_numbers: Sequence[Sequence[Scalar]] | None = None
        """Of every node, in its first run."""
        self.resized: Resized | None = None
        """Of a structure."""
        self.whole: Program | None = None
        self.seconds: Sequence[float] = ()
        self.regions: Sequence[Region] = ()
        self.libraries: Sequence[Library] = ()
        self.plan: CompiledPlan | None = None
        self.plans = 0
        self.varying: set[int] = set()

    def changed(self, why: str) -> None:
        """Note a run with other numbers or sizes than were compiled in. After several, the program is
        compiled anew, with these numbers as inputs, once."""
        self.trial.unused(why)
        if self.trial.state == "dropped" and not self.anew:
            self.anew, self.trial = True, Trial()
            self.run_by(None)

    def run_by(self, plan: CompiledPlan | None) -> None:
        """Let the program run by a plan from here on."""
        self.drop_recordings()
        self.plan = plan

    def drop_recordings(self) -> None:
        """Free the memory of recordings. They are made again when their regions run."""
        for call in () if self.plan is None else self.plan.calls:
            if call.recorded is not None:
                call.recorded.drop()

    def forget(self) -> None:
        """Free what a program that was dropped needs no more."""
        self.run_by(None)
        self.whole = self.first_numbers = self.resized = None
        self.seconds = self.regions = self.libraries = ()

    @property
    def difference(self) -> float:
        """Return the largest difference that a check found."""
        calls = () if self.plan is None else self.plan.calls
        return max((call.difference or 0.0 for call in calls), default=0.0)

    def sentence(self) -> str:
        """Say what became of it, for people."""
        trial = self.trial
        match trial.state:
            case "counting":
                return f"{OP_BY_OP}; compiled once it has run {RUNS_BEFORE} times"
            case "dropped":
                return f"{OP_BY_OP}: {trial.why}"
            case "compiling":
                return f"{OP_BY_OP}; {self._extent()} being compiled"
            case "checking":
                return f"{self._extent()} {self._made}, and are checked by the next run{self._beside}"
            case "measuring":
                return (
                    f"{self._extent()} {self._made} and within {self.difference:.1e}; being measured in "
                    f"turns with op by op{self._beside}"
                )
            case "compiled":
                said = (
                    f"{self._extent()} {self._made}: {format_seconds(trial.compiled_s)} for "
                    f"{format_seconds(trial.plain_s)} op by op, largest difference {self.difference:.1e}"
                    f"{self._beside}"
                )
                if not trial.compile_s:
                    return said
                took = format_seconds(trial.compile_s)
                return f"{said}; compiling took {took}, which {trial.runs_to_pay:,} runs save"

    @property
    def _beside(self) -> str:
        return "" if self.resized is None else self.resized.sentence()

    @property
    def _made(self) -> str:
        recorded = any(library.record is not None for library in self.libraries)
        return "recorded as CUDA graphs" if recorded else "compiled"

    def _extent(self) -> str:
        regions = self.regions
        ops = sum(region.end - region.first for region in regions)
        return f"{ops} ops in {len(regions)} region{'s are' if len(regions) != 1 else ' are'}"


class CompiledPrograms:
    """``interpreter``: runs them. ``size``: of their regions, None for the usual one."""

    def __init__(
        self, interpreter: Interpreter, libraries: Libraries, size: RegionSize | None = None
    ) -> None:
        self._size = size or (RECORDED_SIZE if libraries.are_recorded else REGION_SIZE)
        self._nodes = 0
        self._interpreter = interpreter
        self._libraries = libraries
        self._followed: OrderedDict[tuple[bytes, float], FollowedProgram] = OrderedDict()
        interpreter.memory.spare = self._drop_recordings

    # --- runs

    def run(
        self, message: RunSegment, blobs: Mapping[str, str], should_stop: ShouldStop, report: Report
    ) -> Outcome:
        """Run a segment as :meth:`~djinn_lab.worker.interpreter.Interpreter.run` does, within its session's
        tolerance."""
        known = self._follow(message)
        if known is None:
            return self._interpreter.run_segment(message, blobs, should_stop, report)
        way, began_s = known.trial.way(), perf_counter()
        outcome = None
        if known.plan is not None and way != "plain":
            program = decode_program(message.program)
            misfit = known.plan.misfit(program)
            if misfit:
                known.changed(misfit)
            else:
                outcome = self._by_plan(known.plan, way, program, message, blobs, should_stop, report)
                if outcome.left:
                    known.trial.unused(outcome.left)
        if outcome is None:
            way, outcome = "plain", self._interpreter.run_segment(message, blobs, should_stop, report)
        took_s = perf_counter() - began_s - outcome.load_s - outcome.fetch_s
        if way != "plain" and known.trial.state != "dropped":
            self._judge(known, way)
        if outcome.failure is None and outcome.stopped is None and not outcome.left:
            known.trial.ran(way, took_s)
        if known.trial.state == "dropped":
            known.forget()
        outcome.compiled = known.sentence()
        return outcome

    def _follow(self, message: RunSegment) -> FollowedProgram | None:
        """Return what is known of a segment's program; None for one that runs op by op whatever it is."""
        whole = message.resume is None and not message.imports and not message.exports
        if message.key is None or not whole or message.watched:
            return None
        found = self._of_all_sizes(message) or self._entry(message.key, message.tolerance)
        while len(self._followed) > PROGRAMS_MAX or (
            self._nodes > NODES_KEPT_MAX and len(self._followed) > 1
        ):
            _, gone = self._followed.popitem(last=False)
            self._nodes -= gone.nodes
            gone.forget()
        return found

    def _of_all_sizes(self, message: RunSegment) -> FollowedProgram | None:
        """Return what is known of all programs of the segment's structure, where their sizes are others in
        each run; None where its own repeats, or where these have nothing in common."""
        own = self._followed.get((message.key or b"", message.tolerance))
        if not message.structure or (own is not None and own.trial.runs >= RUNS_BEFORE):
            return None
        found = self._entry(b"of all sizes " + message.structure, message.tolerance)
        if message.key is not None and len(found.keys) < SIZES_BEFORE:
            found.keys.add(message.key)
        has_parts = found.trial.state != "dropped" or found.trial.why not in NOTHING_IN_COMMON
        return found if has_parts and len(found.keys) == SIZES_BEFORE else None

    def _entry(self, key: bytes, tolerance: float) -> FollowedProgram:
        name = (key, tolerance)
        found = self._followed.setdefault(name, FollowedProgram(*name))
        self._followed.move_to_end(name)
        return found

    def _by_plan(
        self,
        plan: CompiledPlan,
        way: Way,
        whole: Program,
        message: RunSegment,
        blobs: Mapping[str, str],
        should_stop: ShouldStop,
        report: Report,
    ) -> Outcome:
        """Run with compiled regions. Where one does not run, the rest of the program runs op by op."""
        assert message.key is not None
        program, key = plan.rewritten(whole), plan.key + message.key
        for call in plan.calls:
            call.checking = way == "checked"
        interpreter, ops = self._interpreter, plan.started(len(program.nodes))
        interpreter.prepare_calls(program, plan.calls, key)
        outcome = interpreter.run_program(
            program,
            message.session,
            blobs,
            should_stop,
            lambda done, _: report(plan.started(done), ops),
            key,
            serial=message.serial,
        )
        plan.read_back(outcome)
        outcome.compiled_ops = plan.ops
        if not outcome.left:
            return outcome
        resume = Resume(outcome.executed, outcome.rng_state)

        def report_rest(done: int, total: int) -> None:
            if done > resume.executed:  # that it began has been reported
                report(done, total)

        rest = after(outcome, self._interpreter.run_segment(message, blobs, should_stop, report_rest, resume))
        rest.left, rest.compiled_ops = outcome.left, outcome.compiled_ops
        return rest

    def _judge(self, known: FollowedProgram, way: Way) -> None:
        """Leave out regions that failed, and after a check those that differ by more than the tolerance."""
        plan = known.plan
        assert plan is not None
        good = []
        for call, region in zip(plan.calls, known.regions, strict=True):
            if call.library.run is None:
                known.why = call.library.problem
            elif (call.difference or 0.0) > known.tolerance:
                known.why = f"the results of a region differ by {call.difference:.1e}"
            else:
                good.append((region, call.library))
        if len(good) < len(plan.calls):
            known.regions, known.libraries = [region for region, _ in good], [one for _, one in good]
            self._make_plan(known)
        elif way == "checked" and all(call.is_checked for call in plan.calls):
            known.trial.checked()

    def _drop_recordings(self) -> None:
        for known in self._followed.values():
            known.drop_recordings()

    # --- between runs

    def after_run(self, message: RunSegment, outcome: Outcome) -> None:
        """Do what takes time once the answer has left: find what to compile, and ask for it."""
        known = self._follow(message)
        if known is None or known.trial.state != "counting" or outcome.failure or outcome.stopped:
            return
        program = decode_program(message.program)
        if len(program.nodes) > NODES_MAX or program.settings is not None:
            known.trial.drop(
                "it is too long" if program.settings is None else "it runs under numeric settings of its own"
            )
            return
        numbers = [node.scalars for node in program.nodes]
        if known.first_numbers is None:
            known.first_numbers = numbers
            known.nodes = len(numbers)
            self._nodes += known.nodes
        if known.keys:
            known.resized = known.resized or Resized(program)
            known.resized.add(program)
        if known.trial.is_due:
            self._ask(known, program, numbers, outcome)

    def _ask(
        self,
        known: FollowedProgram,
        program: Program,
        numbers: Sequence[Sequence[Scalar]],
        outcome: Outcome,
    ) -> None:
        times = array("d")
        times.frombytes(outcome.node_times)
        seconds = [end_s - start_s for start_s, end_s in zip(times[::2], times[1::2], strict=True)]
        assert known.first_numbers is not None
        known.varying.update(
            index
            for index, (now, before) in enumerate(zip(numbers, known.first_numbers, strict=True))
            if not same_numbers(now, before)
        )
        resized = () if known.resized is None else known.resized.nodes
        recorded = self._libraries.are_recorded
        regions = find_regions(program, seconds, known.varying, self._size, resized, recorded)
        if not regions:
            known.trial.drop(NO_PART)
            return
        known.whole, known.seconds, known.regions = program, seconds, regions
        known.trial.compiling()
        encoded = [encode_program(compilable(program, region)) for region in regions]
        known.libraries = [self._libraries.want(region) for region in encoded]
        self._compiled(known)

    def answered(self, message: RegionCompiled) -> None:
        """Take what the pool answered to a request."""
        self._libraries.answered(message)
        for known in list(self._followed.values()):
            if known.trial.state == "compiling":
                self._compiled(known)

    def _compiled(self, known: FollowedProgram) -> None:
        if all(library.answered for library in known.libraries):
            self._make_plan(known)

    def _make_plan(self, known: FollowedProgram) -> None:
        """Plan a program's runs with the regions that have a library; without any, drop it."""
        program = known.whole
        assert program is not None
        pairs = zip(known.regions, known.libraries, strict=True)
        usable = [(region, library) for region, library in pairs if library.run is not None]
        if not usable:
            why = known.why or next((library.problem for library in known.libraries), "")
            known.trial.drop(why)
            known.forget()
            return
        known.regions = [region for region, _ in usable]
        known.libraries = [library for _, library in usable]
        calls = [self._interpreter.call(template, program) for template in program.templates]
        memory = self._interpreter.memory
        device = self._interpreter.device
        region_calls = [
            RegionCall(program, region, library, calls, memory, device) for region, library in usable
        ]
        known.plans += 1
        key = known.key + f"compiled {known.plans} within {known.tolerance}".encode()
        known.run_by(CompiledPlan(program, known.regions, region_calls, key, known.seconds))
        seconds = {id(library): library.seconds for library in known.libraries}
        known.trial.compiled(sum(seconds.values()))
