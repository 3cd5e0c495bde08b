"""Figures in pages are those of the result files that the pages name.

Each row of a table, or sentence, is made here from the file and must stand in the page, as it is but for line
breaks. A new result file changes what is made, and this fails until the page says the same.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
MACHINE = "amd-epyc-2-cores"
OPERATORS, MODELS = f"operators-{MACHINE}-2026-11-22", f"models-{MACHINE}-2026-11-23"
LIBRARIES, TUTORIALS = f"libraries-{MACHINE}-2026-11-22", f"tutorials-{MACHINE}-2026-11-23"
FUZZ, KILLS = "fuzz-intel-r-xeon-r-processor-2-cores-2026-11-24", f"kills-{MACHINE}-2026-11-25"
RECORDER = "recorder-intel-r-xeon-r-processor-2-cores-2026-11-24"
ENGINE = "engine-intel-r-xeon-r-processor-2-cores-2026-11-24"
MEMORY_LIVE, EARLY = f"engine-{MACHINE}-2026-11-23", f"early-start-{MACHINE}-2026-11-23"
LOSSES, OUTAGES = f"losses-{MACHINE}-2026-11-25", f"outages-{MACHINE}-2026-11-25"
OFFLOAD = f"offload-{MACHINE}-2026-11-26"
COSTS, DEVICES = f"cost-model-{MACHINE}-2026-11-26", f"devices-{MACHINE}-2026-11-26"
PLAN, COMPILE = "plan-intel-r-xeon-r-processor-2-cores-2026-11-28", f"compile-{MACHINE}-2026-11-26"
GRAPH_PAGE = "graph-page-intel-r-xeon-r-processor-2-cores-2026-11-28"
VISITORS = f"dashboard-visitors-{MACHINE}-2026-11-26"
DECODE, BATCHING = f"decode-{MACHINE}-2026-11-26", f"batching-{MACHINE}-2026-11-26"
ISOLATION = f"isolation-{MACHINE}-2026-11-25"
PATTERNS_FOUND = f"patterns-{MACHINE}-2026-11-25"
NOTEBOOKS = f"notebook-cells-{MACHINE}-2026-11-25"
HOSTS = f"hosts-{MACHINE}-2026-11-28"
SIMULATED_HOSTS = f"hosts-simulated-{MACHINE}-2026-11-28"
SIMULATED, PYTHON = f"memory-simulated-{MACHINE}-2026-11-21", f"capture-{MACHINE}-2026-11-21"
TORCHES = "torch-intel-r-xeon-r-processor-2-cores-2026-12-01"
TORCH_OUTCOMES = (
    "other result in the two versions' eager torch",
    "refused, as the pool's torch lacks the op",
    "refused by the kernel of the pool's torch, which takes less",
    "refused with advice",
)
BOUND = "oracle_on_one_node_mean_min"


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def page(name: str) -> str:
    return flat((ROOT / "docs" / f"{name}.md").read_text())


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def figures(name: str) -> dict[str, Any]:
    return {figure["name"]: figure for figure in result(name)["figures"]}


def ours(figure: Any) -> float:
    return float(figure["series"]["djinn"]["median"])


def beside(found: Iterable[Any], baseline: str = "eager") -> Iterator[float]:
    return (figure["ratios"][baseline]["median"] for figure in found)


def shown(value: float, digits: int = 2) -> str:
    """With so many significant digits, and no exponent."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e" in text else text


# -- docs/coverage.md ----------------------------------------------------------------------------------------

CALLED = {
    "call": "plainly",
    "inplace": "in place",
    "out": "`out=`, right",
    "out, empty": "`out=`, empty",
    "out, wrong dtype": "`out=`, wrong dtype",
    "transposed": "on transposed inputs",
    "sliced": "on sliced inputs",
    "expanded": "on expanded inputs",
    "overlapping": "on overlapping inputs",
    "gradients": "with gradients",
}
RIGHT = ("equal", "raises in both alike", "undefined or random in eager torch, equal in layout")
RAISED = ("raised differently", "raised where eager does not")
WRONG = ("wrong value", "wrong layout", "wrong aliasing")
OUTCOMES = (
    RIGHT,
    ("other last bits in eager too when the same inputs lie elsewhere in memory",),
    ("equal within rounding, not bit for bit",),
    ("refused with advice",),
    RAISED,
    WRONG,
)


def operators() -> Iterator[str]:
    found = result(OPERATORS)
    by_variant: dict[str, Counter[str]] = {}
    for count in found["counts"]:
        numbers = {name: value for name, value in count.items() if isinstance(value, int)}
        by_variant.setdefault(count["variant"], Counter()).update(numbers)
    for variant, count in by_variant.items():
        yield _operator_row(CALLED[variant], count)
    total = sum(by_variant.values(), Counter[str]())
    yield _operator_row("**all**", total)
    wrong = sum(total[outcome] for outcome in WRONG)
    right = sum(total[outcome] for outcome in RIGHT)
    yield (
        f"{total['runs']:,} calls of the native recorder, one run of commit `{found['commit'][:7]}`: "
        f"{right / total['runs']:.2%}".replace("%", " % right")
    )
    yield f"{wrong} silently wrong, in `benchmarks/results/{OPERATORS}.json`"
    yield f"(`torch.testing`, {found['operators']} of them)"
    assert found["summary"]["silently wrong"] == wrong


def _operator_row(name: str, count: Counter[str]) -> str:
    right, *others = (sum(count[outcome] for outcome in kinds) for kinds in OUTCOMES)
    return row(name, f"{count['runs']:,}", f"{right:,}", *others)


DIFFER = {
    "layout": "layout",
    "unnoticed": "an error that eager torch raises and we do not",
    "error": "another error",
    "value": "value",
}


def fuzz() -> Iterator[str]:
    found = result(FUZZ)
    last = found["first"] + found["count"] - 1
    differences = sum(count for kind, count in found["differences"].items() if kind != "refused")
    yield (
        f"{found['sequences']:,} sequences of {found['steps']:,} steps, the native recorder at commit "
        f"`{found['commit'][:7]}`, seeds {found['first']} to {last}, in `benchmarks/results/{FUZZ}.json`: "
        f"{len(found['crashes'])} crashes, {len(found['hangs'])} hangs, {differences} differences: "
        + ", ".join(f"{found['differences'][kind]} of {words}" for kind, words in DIFFER.items())
    )
    yield f"{found['differences']['refused']:,} sequences were refused with advice"


FAMILY_OUTCOMES = ("equal", "not in eager", "refused", "wrong", "raised", "crashed", "out of time")


def models() -> Iterator[str]:
    found = result(MODELS)
    total: Counter[str] = Counter()
    for family, tasks in found["counts"].items():
        count = Counter(tasks["architectures"])
        assert count.keys() <= set(FAMILY_OUTCOMES)
        total += count
        yield row(family, count.total(), *(count[outcome] for outcome in FAMILY_OUTCOMES))
    yield row("**all**", total.total(), *(total[outcome] for outcome in FAMILY_OUTCOMES))
    rest = total.total() - total["not in eager"]
    yield (
        f"in `benchmarks/results/{MODELS}.json`: of {total.total()} architectures {total['not in eager']} "
        f"are not in eager; of the other {rest}, {total['equal']} are equal in every task to the last bit "
        f"and {total['out of time']} were not finished"
    )
    yield f"One run of commit `{found['commit'][:7]}` with the native recorder, transformers"


def libraries() -> Iterator[str]:
    found = result(LIBRARIES)
    for item in found["items"]:
        slow = (f"{item[key]}x" for key in ("slowdown_wall", "slowdown_cpu"))
        yield row(item["program"], item["outcome"], *slow)
    others = len(found["libraries"]) - 1  # torch itself
    yield f"runs {len(found['items'])} short programs of {others} libraries"
    counts = found["counts"]
    yield (
        f"One run of commit `{found['commit'][:7]}`, in `benchmarks/results/{LIBRARIES}.json`: "
        f"{counts['equal']} equal, {counts['wrong']} wrong; medians of the equal ones "
        f"{found['slowdown_wall_median']}x (wall) and {found['slowdown_cpu_median']}x (CPU)"
    )


def tutorials() -> Iterator[str]:
    found = result(TUTORIALS)
    for item in found["items"]:
        yield row(f"{item['repository']}/{item['path']}", item["outcome"])
    counts = found["counts"]
    yield (
        f"in `benchmarks/results/{TUTORIALS}.json`: of {sum(counts.values())}, {counts['equal']} are equal "
        f"and {counts['not in eager']} are not in eager torch"
    )


# -- docs/benchmarks.md --------------------------------------------------------------------------------------

STEPS = (
    "training step",
    "training step of a CNN, AdamW",
    "training step of a transformer block, AdamW with foreach",
)
OPS = ("pointwise", "mm", "view", "in-place")


def verdict(found: Sequence[Any]) -> str:
    """``met``, where all goals are, else a word for each figure; ``none`` where there is no goal."""
    if not any(figure["goals"] for figure in found):
        return "none"
    missed = [
        [f"missed {goal['limit']:.3g}" for goal in figure["goals"] if not goal["met"]] for figure in found
    ]
    return "met" if not any(missed) else ", ".join(goals[-1] if goals else "met" for goals in missed)


def compared(
    what: str, found: Sequence[Any], unit: str, per_unit: float = 1.0, baseline: str = "eager"
) -> str:
    values = ", ".join(shown(ours(figure) / per_unit) for figure in found)
    ratios = ", ".join(f"{one:.2f}x" for one in beside(found, baseline))
    return row(what, f"{values} {unit}", f"{baseline} {ratios}", verdict(found))


def recording() -> Iterator[str]:
    found = figures(RECORDER)
    three = "perceptron, CNN, transformer block with foreach"
    for heat, same in (("hot", three), ("cold", "the same three")):
        ops, steps = ([found[f"{kind}, {heat}"] for kind in kinds] for kinds in (OPS, STEPS))
        yield compared(f"{heat} pointwise, mm, view, in-place, per op", ops, "us")
        yield compared(f"{heat} training step, per op: {same}", steps, "us")
    lazy = ", ".join(f"{one:.2f}x" for one in beside((found[f"{kind}, hot"] for kind in OPS), "torch._lazy"))
    yield f"Beside `torch._lazy` the hot ops take {lazy}."
    yield f"one run of commit `{result(RECORDER)['commit'][:7]}`"


def whole_cells() -> Iterator[str]:
    found = figures(RECORDER)
    sizes = "1024 x 1024, batches of 256", "512 x 512, batches of 64"
    training = [found[f"training steps, layers of {size}"] for size in sizes]
    yield compared("training, layers of 1024 and of 512", training, "s")
    yield compared("forward passes of BERT", [found["forward passes of a BERT of 22 M parameters"]], "s")
    tokens = [found[f"GPT-2 {kind}, greedy"] for kind in ("of 124 M parameters", "with layers of 64")]
    yield compared("a token of GPT-2, 124 M parameters and layers of 64", tokens, "ms", 1e-3)
    yield compared("a cell of one op", [found["cell of one op"]], "ms", baseline="WebSocket ping")
    for run in ("first run", "second run"):
        inputs = [found[f"{name}, {run}"] for name in ("search", "train", "generate")]
        yield compared(f"quickstart's search, train, generate, {run}", inputs, "s")
    uploads = [found[f"upload of {size} MB, whole cell"] for size in (256, 500)]
    yield compared("upload of 256 and of 500 MB, whole cell", uploads, "GB/s", baseline="memcpy")
    empty = [found["with session.capture(): pass"], found["%%djinn cell in IPython"]]
    values = ", ".join(shown(ours(figure)) for figure in empty)
    yield f"| an empty cell, captured and under `%%djinn` | {values} us |"
    off = max(
        figure["series"]["djinn"]["maximum"]
        for figure in result(RECORDER)["figures"]
        if figure["benchmark"] == "stages"
    )
    yield f"The stages of a cell sum to its total to within {off:.2f} %"


UNTRUE = "sentences on why a cell waits that did not come true"


def why_truth() -> Iterator[str]:
    values = figures(ENGINE)[UNTRUE]["facts"]["values"]

    def part(name: str) -> float:
        return float(values[name]["held"]) / float(values[name]["looks"])

    starts, bare = values["expected to start"], values["(forecast as computed)"]
    yield (
        f"of {starts['looks']:,} expected starts {part('expected to start'):.0%}".replace("%", " %")
        + f" were right, where the bare forecast was in {part('(forecast as computed)'):.0%}".replace(
            "%", " %"
        )
        + f" of {bare['looks']:,}; {values['(start not predicted)']['looks']:,} times"
    )
    for name, words in (
        ("its state is on its way", "state on its way"),
        ("others are evicted", "others are evicted"),
        ("waits for a session to close", "waits for a session to close"),
        ("waits where its state lies", "where its state lies"),
        ("others wait before it", "others wait before it"),
        ("waits for named cells", "waits for named cells"),
        ("waits for any cell or close", "waits for any cell or close"),
        ("it is next", "it is next"),
    ):
        yield f"{words} {values[name]['held']} of {values[name]['looks']}"


SCALE = {
    "alive": [f"/v1/alive while cells are {what}" for what in ("handed in", "read", "run")],
    "answer": [f"from handing in to the first answer, while {what}" for what in ("none runs", "all run")],
    "commands": [
        f"djinn-lab {what} with 10,000 waiting cells" for what in ("queue", "why JOB", "pool status")
    ],
}


def late(figure: Any) -> float:
    return float(figure["series"]["djinn"]["p99"])


def scale() -> Iterator[str]:
    found = figures(ENGINE)
    for kind, unit, unit_s in (("alive", "ms", 1), ("answer", "ms", 1), ("commands", "s", 1000)):
        chosen = [found[name] for name in SCALE[kind]]
        medians = ", ".join(shown(ours(figure) / unit_s) for figure in chosen)
        slowest = "" if kind == "commands" else f"; p99 {', '.join(f'{late(one):.0f}' for one in chosen)} ms"
        ratios = ", ".join(f"{one:.1f}x" for one in beside(chosen, "10 sessions"))
        yield f"| {medians} {unit}{slowest} | {ratios} |"
    cpu = found["CPU time of the server for a cell"]
    [ratio] = beside([cpu], "10 sessions")
    yield f"| CPU time of the server for a cell | {ours(cpu):.0f} ms | {ratio:.2f}x | 1.5x met |"
    queue = found["GET /v1/queue with 10,000 waiting cells"]
    yield f"| {ours(queue):.0f} ms; maximum {queue['series']['djinn']['maximum']:.0f} ms |"
    assert not ours(found["cells that did not end well"])


def turns() -> Iterator[str]:
    found = figures(ENGINE)
    for what, unit, per_unit in (
        ("turn p50", "s", 1.0),
        ("turn p99", "s", 1.0),
        ("wake-up p99", "s", 1.0),
        ("copied", "GB", 1e9),
    ):
        sides = []
        for workload in ("80 agents live at once", "overload, 120 agents"):
            figure = found[f"{workload}: {what}"]
            [ratio] = beside([figure], "lru_write_through")
            missed = not all(goal["met"] for goal in figure["goals"])
            limit = " 1.2x" if missed and what == "copied" else ""
            verdict = f", missed{limit}" if missed else ""
            sides.append(f"{shown(ours(figure) / per_unit)} {unit} | {ratio:.2f}x{verdict}")
        yield f"| {' | '.join(sides)} |"
    yield f"Ten agents that all fit: {ours(found['10 agents that all fit: evictions']):.0f} evictions"


def early_starts() -> Iterator[str]:
    texts = []
    for figure in figures(EARLY).values():
        other_ms = figure["series"]["ours_no_early_start"]["median"]
        (ratio,) = beside([figure], "ours_no_early_start")
        texts.append(f"after {ours(figure):.0f} ms beside {other_ms:,.0f} ms ({shown(ratio)}x)")
        count = figure["series"]["djinn"]["count"]
    yield f"{count} turns each): it runs {texts[0]}, and answers {texts[1]}"


def decisions() -> Iterator[str]:
    found = figures(ENGINE)
    event = found["one event with 10,000 waiting cells: end, arrival, decision, enacted"]
    [ratio] = beside([event], "full_scan")
    yield f"| {ours(event):.0f}, {late(event):.0f} us | a full scan {shown(ratio)}x |"
    guaranteed = found["one event where 65 accounts are guaranteed devices"]
    [ratio] = beside([guaranteed], "without_guarantees")
    yield f"| {ours(guaranteed):.0f} us | without guarantees {shown(ratio)}x |"
    wait = found["wait of an interactive cell of one op meanwhile"]
    [ratio] = beside([wait], "fifo_passing")
    yield f"| {ours(wait):.0f}, {late(wait):.0f} ms | `fifo_passing` {ratio:.2f}x |"
    for name in ("device free for another, both fit", "device free for another, its state parked first"):
        [ratio] = beside([found[name]], "waiting for its end")
        yield (
            f"| {name} | {shown(ours(found[name]))} ms; p99 {late(found[name]):.0f} ms | "
            f"waiting for its end {ratio:.2f}x |"
        )


# -- docs/pool.md, docs/session-memory.md --------------------------------------------------------------------


def kills() -> Iterator[str]:
    one, two, notebooks = result(KILLS)["databases"].values()
    assert notebooks["wrong"] == []
    yield f"killed {notebooks['kills']} times under {notebooks['programs']} programs"
    total = {key: one[key] + two[key] for key in ("kills", "jobs", "messages")}
    yield f"Of {total['kills']} kills, {total['jobs']:,} jobs and {total['messages']:,} messages"
    assert one["wrong"] == two["wrong"] == []
    first, second = (found["served again after, s"] for found in (one, two))
    yield (
        f"A pool served again after {first['median']:.1f} s (median; p99 {first['p99']:.1f} s) and "
        f"{second['median']:.1f} s (p99 {second['p99']:.1f} s)"
    )


def isolation_costs() -> Iterator[str]:
    found = {
        figure["name"]: figure
        for figure in result(ISOLATION)["figures"]
        if figure["benchmark"] == "isolation"
    }
    spawned, none = "a spawned worker", "--isolation none"
    (first,) = beside([found["first cell of a user, to its result"]], spawned)
    (memory,) = beside([found["memory of a worker"]], spawned)
    one, training = beside([found["cell of one op"], found["training cell"]], none)
    yield f"a user's first cell took {first:.2f} times that with a spawned worker"
    yield f"a worker {memory:.2f} times its memory"
    yield f"a cell of one op {one:.2f} times that of `--isolation none`"
    yield f"and a training cell {training:.2f} times"


def offload() -> Iterator[str]:
    for what in ("inference", "training"):
        found = figures(OFFLOAD)[f"a cell of {what}, weights of twice the device"]
        (ratio,) = beside([found], "a device with memory for all")
        left, back = found["facts"]["to_host_mib"], found["facts"]["back_mib"]
        assert found["facts"]["equal"]
        yield f"a cell of {what} took {ratio:.2f} times as long, for"
        yield (
            f"{left:.0f} MiB that left and {back:.0f} MiB that came back"
            if left
            else f"{back:.0f} MiB that came back"
        )


def costs() -> Iterator[str]:
    found = figures(COSTS)
    wide = " (nine of ten)"
    for name, figure in found.items():
        family, off, _ = name.partition(": run time predicted, off by")
        if not off or name.endswith(wide):
            continue
        (by_rates,), nine = beside([figure], "roofline"), found[f"{name}{wide}"]
        label = f"**{family}**" if family == "all" else family
        yield row(label, f"{ours(figure):.1%}", f"{ours(nine):.1%}", f"{by_rates:.2f}x")
    yield f"`benchmarks/results/{COSTS}.json`"


def graph_scheduler() -> Iterator[str]:
    (decode,), (batching,) = figures(DECODE).values(), figures(BATCHING).values()
    yield row(
        "a decode step beside another session's prefill",
        f"{ours(decode):.0f} ms",
        f"order of arrival {shown(*beside([decode], 'order of arrival'))}x, "
        f"no prefill {shown(*beside([decode], 'no prefill'))}x",
    )
    yield row(
        "a decode step, eight sessions as one batch",
        f"{ours(batching):.0f} ms",
        f"one by one {shown(*beside([batching], 'one by one'))}x",
    )
    for name, figure in figures(COMPILE).items():
        (ratio,) = beside([figure], "op by op")
        kept = "dropped" if "not faster" in figure["facts"]["said"] else "compiled"
        what = name.removeprefix("a cell: ")
        yield row(
            f"a cell with a tolerance, {what}: {kept}", f"{ours(figure):.0f} ms", f"op by op {ratio:.2f}x"
        )
    for name, figure in figures(DEVICES).items():
        assert figure["facts"].get("equal", True)
        ratios = ", ".join(f"{other} {ratio['median']:.2f}x" for other, ratio in figure["ratios"].items())
        on_pool = name.endswith(": run time on the pool")
        what = f"two devices, {name.partition(':')[0]}" if on_pool else name
        yield row(what, f"{ours(figure):.0f} {figure['unit']}", ratios)
    for name, figure in figures(PLAN).items():
        ratio = shown(*beside([figure], "metadata asked for"))
        unit = figure["unit"].replace("/", " a ")
        yield row(f"plan: {name}", f"{shown(ours(figure), 3)} {unit}", f"metadata asked for {ratio}x")
    for name in (DECODE, BATCHING, COMPILE, DEVICES, PLAN):
        yield f"`{name}.json`"


def graph_page() -> Iterator[str]:
    found = figures(GRAPH_PAGE)
    ops = next(iter(found.values()))["facts"]["ops"]
    yield f"With {ops:,} ops on two cores (`{GRAPH_PAGE}.json`)"
    for name, figure in found.items():
        yield f"{name}: {ours(figure):.2f} s"


def visitors() -> Iterator[str]:
    found = figures(VISITORS)
    yield f"`{VISITORS}.json`"
    for crowd in ("1 visitor", "10 visitors", "50 visitors"):
        of = f"change of the pool until the page has it, {crowd.removesuffix('s')}s"
        yield f"{crowd}: {ours(found[of]):.2f} s, p99 {late(found[of]):.2f} s"
    share = found["change of the pool until the page has it, 50 visitors"]["facts"]["cpu_share_of_a_core"]
    each = ours(found["memory of the server for a visitor"])
    growth = ours(found["growth of the server's memory in a minute, 50 visitors"])
    yield f"used {share:.0%} of a core for 50 visitors, {each:.1f} MiB for each, and grew by {growth:.1f} MiB"
    paint = ours(found["page Jobs, first contentful paint"])
    click = ours(found["page Jobs, click on a filter until the rows change"])
    yield f"first paint {paint:.2f} s, a click {click:.2f} s"


def losses() -> Iterator[str]:
    found = result(LOSSES)
    assert found["wrong"] == []
    yield f"Of {found['kills']} kills at random moments of {found['programs']} random notebooks"
    yield f"{found['cells']:,} cells"
    took_s = found["recovery with the lost run, s"]
    yield f"{took_s['p50']:.1f} s (median; p99 {took_s['p99']:.1f} s)"
    yield f"In {found['programs with two deaths under one part of a cell']} notebooks"


def outages() -> Iterator[str]:
    found = result(OUTAGES)["outages"]
    assert [one["wrong"] for one in found.values()] == [[]] * 3
    total = {key: sum(one[key] for one in found.values()) for key in ("outages", "cells")}
    yield f"{total['outages']} outages under {total['cells']} cells"


def memory_live() -> Iterator[str]:
    found = figures(MEMORY_LIVE)
    for name in found:
        workload, _, figure = name.partition(": ")
        if figure != "wake p99 over floor":
            continue
        words = workload.replace("80 agents live", "80 live")
        hits = 1 - ours(found[f"{workload}: miss rate"])
        useful = 1 - ours(found[f"{workload}: useless swaps"])
        floor = re.escape(shown(ours(found[name])))
        yield (
            rf"\| {re.escape(words)} \| `default` \|[^|]*\|[^|]*\| {hits:.2f} \|[^|]*\| {floor} "
            rf"\| {useful:.2f} \|"
        )


def memory_simulated() -> Iterator[str]:
    found = figures(SIMULATED)
    at = "110 live, 1.5x the device"
    misses, killed = (found[f"{at}: {name}"]["series"] for name in ("miss rate", "killed"))
    for contender, summary in misses.items():
        policy = "default" if contender == "djinn" else contender.replace("ours_", "default_")
        gone = killed[contender]["median"] if contender in killed else 0
        yield rf"\| `{policy}` \| {gone:.0f} \| {1 - summary['median']:.2f} \|"


def workloads_simulated() -> Iterator[str]:
    found = figures(SIMULATED)
    named = {name.partition(": ")[0] for name in found if name.endswith(": p99 ratio")}
    for workload in sorted(named - {"110 live, 1.5x the device"}):
        miss, ratio, killed, useless = (
            ours(found[f"{workload}: {what}"])
            for what in ("miss rate", "p99 ratio", "killed", "useless swaps")
        )
        yield (
            rf"\| {re.escape(workload)} \|[^|]*\| {killed:.0f} \|[^|]*\| {1 - miss:.2f} \| {ratio:.2f} \| "
            rf"(?:-|{1 - useless:.2f}) \|"
        )


def notebook_cells() -> Iterator[str]:
    """Rows of a table: minutes of wait by number of devices."""
    found = figures(NOTEBOOKS)
    for devices in (48, 40, 32):
        means, tails = (found[f"{devices} devices: {what} wait"] for what in ("mean", "p99"))
        reserved = means["facts"]["reserved"]["wait_mean_s"] / 60
        by_policy = (means["series"][policy]["median"] for policy in ("fifo", "fifo_passing"))
        cells = (shown(minutes) for minutes in (*by_policy, ours(means)))
        yield row(devices, f"{reserved:,.0f}", *cells, shown(ours(tails)))
    bounds = [found[f"{number} devices: mean wait"]["facts"][BOUND] for number in (48, 40, 32)]
    yield "the means are {:.1f}, {:.1f} and {:.1f} min".format(*bounds)
    held_h = found["40 devices: mean wait"]["facts"]["held_h"]
    yield f"reserve {held_h['a device per notebook']:,.0f} GPU-hours"
    yield f"their cells compute for {held_h['djinn']:,.0f}"


def speeds() -> Iterator[str]:
    """What the README says of speed in two sentences."""
    found = figures(RECORDER)
    ratio = {name: figure["ratios"].get("eager", {}).get("median", 0) for name, figure in found.items()}
    training = sorted(one for name, one in ratio.items() if name.startswith("training steps, layers"))
    yield f"cells of training took {training[0]:.2f} to {training[-1]:.2f} times as long as plain torch"
    yield f"forward passes of BERT {ratio['forward passes of a BERT of 22 M parameters']:.2f}"
    yield f"are nearly all overhead, {ratio['GPT-2 with layers of 64, greedy']:.2f} ("
    waits = figures(NOTEBOOKS)["40 devices: mean wait"]
    first_fit, reserved_s = (
        waits["series"]["fifo_passing"]["median"],
        waits["facts"]["reserved"]["wait_mean_s"],
    )
    yield f"wait {ours(waits):.1f} min each; first fit makes it {first_fit:.1f}"
    yield f"per notebook {reserved_s / 60:,.0f} ("


def patterns_found() -> Iterator[str]:
    found = result(PATTERNS_FOUND)
    for title, by_kind in found["families"].items():
        yield row(title, found["models"][title], *(_rates(rates) for rates in by_kind.values()))
    yield row("**all**", sum(found["models"].values()), *(_rates(rates) for rates in found["all"].values()))


def _rates(rates: Any) -> str:
    if rates["precision"] is None or rates["recall"] is None:
        return "-"
    return f"{rates['precision']:.2f}, {rates['recall']:.2f} ({rates['both']})"


def two_recorders() -> Iterator[str]:
    hot = figures(PYTHON)["pointwise, hot"]
    eager = hot["series"]["eager"]["median"]
    yield f"in Python took {ours(hot):.1f} us beside {eager:.1f} us of eager torch's dispatch"


CLAIMS = {
    "coverage": (operators, fuzz, models, libraries, tutorials),
    "benchmarks": (
        *(recording, whole_cells, why_truth, scale, turns, early_starts, decisions),
        *(isolation_costs, offload, costs, graph_scheduler, graph_page, visitors, notebook_cells),
    ),
    "pool": (kills, outages),
    "session-memory": (losses,),
    "../README": (speeds,),
    "srg": (patterns_found,),
    "decisions/03-two-recorders": (two_recorders,),
}
PATTERNS = {"session-memory": (memory_live, memory_simulated, workloads_simulated)}


@pytest.mark.parametrize(("name", "claim"), [(name, claim) for name in CLAIMS for claim in CLAIMS[name]])
def test_a_page_says_what_its_result_file_says(name: str, claim: Any) -> None:
    text = page(name)
    assert [made for made in claim() if made not in text] == []


@pytest.mark.parametrize(("name", "claim"), [(name, claim) for name in PATTERNS for claim in PATTERNS[name]])
def test_rows_of_a_table_have_the_figures_of_the_file(name: str, claim: Any) -> None:
    text = page(name)
    assert [made for made in claim() if re.search(made, text) is None] == []


def test_every_result_file_that_a_page_names_is_there() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    named = {name for one in pages for name in re.findall(r"results/([\w.-]+\.json)", one.read_text())}
    assert named
    assert sorted(name for name in named if not (RESULTS / name).exists()) == []


@pytest.mark.parametrize("name", figures(HOSTS))
def test_what_several_hosts_cost(name: str) -> None:
    series = figures(HOSTS)[name]["series"]
    medians = [series[one]["median"] for one in ("djinn", "local engine", "plain Ray actor")]
    shown = [f"{round(one):,}" if one >= 100 else f"{one:.1f}" for one in medians]
    assert row(name, *shown, series["djinn"]["count"]) in page("scale")


def test_what_decisions_for_a_thousand_hosts_cost() -> None:
    measured, text = figures(SIMULATED_HOSTS), page("scale")
    (team,) = (figure["facts"] for figure in measured.values() if figure["facts"])
    assert (
        f"{team['hosts']:,} hosts with {team['devices']:,} devices, {team['sessions']:,} sessions and "
        f"{team['cells_a_day']:,} cells a day"
    ) in text
    assert f"{team['devices_busy_mean']:,} devices ran a cell at a time" in text
    assert f"At {team['cells_a_day_for_a_whole_core']:,} cells a day" in text
    p99_s = measured["one event of a user or a device"]["series"]["djinn"]["p99"] / 1e6
    assert f"One event of a hundred takes {p99_s * 1e3:.1f} ms or more" in text
    for name, figure in measured.items():
        ours, few = (figure["series"][one] for one in ("djinn", "10 hosts"))
        medians = [one["median"] for one in (ours, few)]
        shown_medians = [f"{round(one):,}" if one >= 100 else f"{one:.3g}" for one in medians]
        assert row(f"{name.partition(':')[0]}, {figure['unit']}", *shown_medians, ours["count"]) in text


def test_versions_of_torch_are_those_that_were_swept() -> None:
    found, text = result(TORCHES), page("coverage")
    assert f"benchmarks/results/{TORCHES}.json" in text
    for pair in found["pairs"].values():
        outcomes = pair["outcomes"]
        chance = outcomes.get("undefined or random in eager torch, equal in layout", 0)
        right = outcomes["equal"] + outcomes["raises in both alike"] + chance
        others = [outcomes.get(name, 0) for name in TORCH_OUTCOMES]
        assert right + sum(others) == pair["calls"]
        plain = [name.partition("+")[0] for name in (pair["client"], *pair["pool"])]
        assert row(*plain, pair["recorder"], f"{pair['calls']:,}", f"{right:,}", *others) in text
    for changes in found["changed"].values():
        kinds = ("only in the first", "only in the second", "other arguments")
        for op in (one for kind in kinds for one in changes[kind]):
            assert f"`{op.removeprefix('aten.')}`" in text
        for call in changes["other results"]:
            assert f"`{call.partition(':')[0]}`" in text
