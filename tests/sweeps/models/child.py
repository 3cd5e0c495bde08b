"""Checks the architectures named on standard input, one line of JSON each; the parent starts it anew after a
crash, when time is up, and every so often to give memory back."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch
import transformers
from checks import check


def main(budget_s: int) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # models print; the answers have a channel of their own
    for line in sys.stdin:
        family, model_type = json.loads(line)
        started = time.perf_counter()
        found = _within(budget_s, family, model_type)
        seconds = round(time.perf_counter() - started, 2)
        answers.write(json.dumps({"family": family, "model_type": model_type, "seconds": seconds, **found}))
        answers.write("\n")
        answers.flush()


def _within(budget_s: int, family: str, model_type: str) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(budget_s)
    try:
        return check(family, model_type)
    except _OutOfTime:
        return {"outcome": "out of time", "reason": f"more than {budget_s} s", "tasks": {}}
    finally:
        signal.alarm(0)


class _OutOfTime(BaseException):
    pass


def _stop(number: int, frame: Any) -> None:
    raise _OutOfTime


if __name__ == "__main__":
    main(int(sys.argv[1]))
