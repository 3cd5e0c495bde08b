"""The options of ``%%djinn`` and ``%djinn_config``: one parser, used by the magic, its help and Tab
completion."""

from __future__ import annotations

import argparse
import keyword
import math
import re
import shlex
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import msgspec

from djinn_lab.client.profile_terms import terms_of
from djinn_lab.config import DEFAULT_NAME, Profile, load_profile
from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError
from djinn_lab.jobs import NO_TERMS, Priority, Terms
from djinn_lab.jobs.conditions import separated
from djinn_lab.units import parse_seconds

PRIORITIES = tuple(priority.value for priority in Priority)
PROFILE_OPTIONS = ("-p", "--profile")
ANYWHERE = "any"
_NEGATIVE = re.compile(r"-\.?\d")
"""The target that undoes a default one."""

SWITCHES = {
    "--quiet": "show no progress, no report and no warning",
    "--report": "print where the time went, after the cell",
    "--explain": "print why it ran where and when it did, after the cell",
    "--strict": "an implicit fetch (.item(), bool(), print, .numpy() ...) is an error at its line",
    "--verify": "also compute each op here in eager torch and compare the results",
    "--dry-run": "record the cell and print its plan and cost; run nothing",
}


@dataclass(frozen=True)
class CellOptions:
    """The options of a captured cell. ``terms``: what else is asked of the queue; of defaults only on which
    devices. ``progress_after_s``: seconds before a line of progress is shown; negative: never. ``typing``: of
    the notebook, not of a cell. ``profile``: the name of the profile that supplied what was not given.
    ``output``: the variable that holds the handle of a ``noblock`` cell."""

    priority: str
    progress_after_s: float
    quiet: bool
    report: bool = False
    strict: bool = False
    verify: bool = False
    dry_run: bool = False
    explain: bool = False
    tolerance: float = 0.0
    typing: bool = True
    terms: Terms = NO_TERMS
    profile: str = DEFAULT_NAME
    noblock: bool = False
    output: str | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{self.prog}: {message}{self.hint(message)}", f"See {self.prog}? for the options.")

    def hint(self, message: str) -> str:
        """Return the option that was meant, for an error that names an unknown one."""
        _, unknown, words = message.partition("unrecognized arguments: ")
        known = [name for action in self._actions for name in action.option_strings]
        return did_you_mean(words.split()[0].partition("=")[0], known) if unknown else ""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise OptionError(message or f"{self.prog}: stopped")


def make_parser(program: str) -> _Parser:
    parser = _Parser(prog=program, add_help=False, exit_on_error=False)
    parser.add_argument(*PROFILE_OPTIONS, help="settings profile to use (see djinn-lab profiles)")
    parser.add_argument(
        "--priority",
        type=str.upper,
        choices=PRIORITIES,
        help="priority in the pool's queue (default: the profile's)",
    )
    parser.add_argument(
        "--progress-after",
        type=_finite,
        metavar="SECONDS",
        help="show progress when the cell takes longer (default 2; 0: at once, negative: never)",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="T",
        help="results may differ by T + T * |result|, so that the pool may compile parts of a cell that runs "
        "often (default 0: not by one bit)",
    )
    _add_place(parser)
    if program != "%djinn_config":
        _add_handle(parser)
        _add_terms(parser)
    else:
        parser.add_argument(
            "--typing",
            action=argparse.BooleanOptionalAction,
            help="let the pool restore what it parked when you type in this notebook (JupyterLab)",
        )
    for name, text in SWITCHES.items():
        parser.add_argument(name, action=argparse.BooleanOptionalAction, help=text)
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t",
        "--target",
        metavar="WHERE",
        help="run on this device, such as cuda:0, or on one with this label, such as gpu=h200; several with "
        "commas: any of the devices, all of the labels; any: where the pool likes (the default)",
    )
    parser.add_argument(
        "--tolerate",
        action="append",
        metavar="TAINT",
        help="also run on devices with this taint; may be given several times",
    )


def _add_handle(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-a",
        "--noblock",
        action="store_true",
        default=None,
        help="return once the cell is sent; its handle, or %%djinn result, waits for it, and so does what "
        "uses the session next",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_identifier,
        metavar="NAME",
        help="with --noblock: put the handle into this variable (.get(), .wait(), .ready, .progress, "
        ".cancel(), .report)",
    )


def _add_terms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gang", type=_gang, metavar="N[:MIN]", help="run on N devices at once; with MIN, on as few as MIN"
    )
    parser.add_argument(
        "--after",
        action="append",
        type=_after,
        metavar="JOB",
        help="start when this job (its id, or the first characters) has succeeded; JOB:any: has ended; "
        "JOB:checkpoint[=NAME]: has announced a checkpoint; data:NAME: when such data is published; several "
        "with commas, or by giving the option again",
    )
    parser.add_argument(
        "--after-count", type=int, metavar="N", help="start once so many of these dependencies are met"
    )
    parser.add_argument(
        "--after-timeout", type=_duration, metavar="DURATION", help="wait no longer for them than this"
    )
    parser.add_argument(
        "--deadline",
        type=_duration,
        metavar="DURATION",
        help="finish within this time, such as 90s, 10min or 2h, if possible; stops nothing",
    )
    parser.add_argument(
        "--timeout", type=_duration, metavar="DURATION", help="stop the cell after this much run time"
    )


def _gang(text: str) -> tuple[int, int]:
    members, _, least = text.partition(":")
    if not (
        members.isdecimal()
        and (least.isdecimal() or text == members)
        and int(members) >= int(least or 1) >= 1
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size of a gang; write N or N:MIN, such as 4 or 4:2"
        )
    return int(members), int(least or members)


def _identifier(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a variable")
    return text


def _after(text: str) -> tuple[str, ...]:
    try:
        return separated([text])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _finite(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _duration(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds == 0:
        raise argparse.ArgumentTypeError("it must be more than 0")
    return seconds


def _terms(chosen: dict[str, Any], defaults: Terms) -> Terms:
    """Return the terms; ``defaults``: of which devices, and the profile's. The rest is asked for one cell."""
    gang, least = chosen.pop("gang", (1, 1))
    target = chosen.pop("target", defaults.target)
    tolerated = dict.fromkeys((*defaults.tolerates, *chosen.pop("tolerate", ())))
    return Terms(
        gang=gang,
        gang_min=least,
        after=tuple(one for several in chosen.pop("after", ()) for one in several),
        after_count=chosen.pop("after_count", None),
        after_timeout_s=chosen.pop("after_timeout", None),
        deadline_s=chosen.pop("deadline", None),
        timeout_s=chosen.pop("timeout", None),
        target=None if target == ANYWHERE else target,
        tolerates=tuple(tolerated),
        objective=defaults.objective,
        reserve_fraction=defaults.reserve_fraction,
    )


def default_options(profile: Profile) -> CellOptions:
    settings = profile.session
    return CellOptions(
        settings.priority,
        settings.progress_after_s,
        settings.quiet,
        terms=terms_of(profile),
        profile=profile.name,
    )


def parse_options(line: str, program: str, defaults: CellOptions) -> CellOptions:
    """Return the options; raise OptionError that names the bad one."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise OptionError(f"{program} {line}: {error}", "Close the quotation.") from None
    parser = make_parser(program)
    try:
        found: dict[str, Any] = vars(parser.parse_args(_with_negative_values(words)))
    except argparse.ArgumentError as error:
        hint = parser.hint(str(error))
        raise OptionError(f"{program}: {error}{hint}", f"See {program}? for the options.") from None
    profile = found.pop("profile", None)
    if profile is not None:
        kept = defaults
        defaults = default_options(load_profile(profile))
        if program != "%djinn_config":
            place = {"target": kept.terms.target, "tolerates": kept.terms.tolerates}
            defaults = replace(defaults, terms=msgspec.structs.replace(defaults.terms, **place))
    chosen = {name: value for name, value in found.items() if value is not None}
    if "progress_after" in chosen:
        chosen["progress_after_s"] = chosen.pop("progress_after")
    terms = _terms(chosen, defaults.terms)
    problem = terms.problem()
    if problem is not None:
        raise OptionError(f"{program}: it asks for {problem}.", f"See {program}? for the options.")
    options = replace(defaults, **chosen, terms=terms)
    if options.dry_run and options.verify:
        raise OptionError(
            f"{program}: --dry-run computes nothing, so there is nothing to --verify.",
            "Leave one of them out (a default of %djinn_config is undone by --no-verify or --no-dry-run).",
        )
    _check_noblock(options, program)
    if options.tolerance and options.verify:
        raise OptionError(
            f"{program}: --verify compares bit for bit, which --tolerance gives up.",
            "Leave one of them out (a default of %djinn_config is undone by --no-verify or --tolerance 0).",
        )
    return options


def _with_negative_values(words: list[str]) -> list[str]:
    """Write ``--deadline -5s`` as ``--deadline=-5s``: argparse takes a value with a hyphen for an option."""
    joined: list[str] = []
    for word in words:
        if _NEGATIVE.match(word) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined


def _check_noblock(options: CellOptions, program: str) -> None:
    """Raise OptionError for what makes no sense with --noblock, or without."""
    if options.output is not None and not options.noblock:
        raise OptionError(
            f"{program}: -o {options.output} names the handle of a cell that is not waited for.",
            "Give -a (--noblock), too, or leave it out.",
        )
    for name, given, why in (
        ("dry-run", options.dry_run, "runs nothing, so there is nothing to wait for"),
        ("verify", options.verify, "compares results when the cell ends, so the cell has to wait for them"),
    ):
        if options.noblock and given:
            raise OptionError(
                f"{program}: --{name} {why}; it does not go with --noblock.",
                f"Leave one of them out (a default of %djinn_config is undone by --no-{name}).",
            )


def help_text(program: str) -> str:
    return make_parser(program).format_help()
