"""Text of a training job -> steps, configuration, findings. Pure: callers do the reading.

reader      bytes in any chunks -> events, and one `LogReport`       sans-io
sieve       which lines of a block are worth reading at all          speed
maxtext     one line -> rank, step, environment, configuration
signatures  one line -> failure class: the ordered table (`row`, `workload`, `cluster`)
triage      report + outcome -> findings, and the one that is the root cause
metrics     MaxText's metrics file -> unrounded steps
"""

from pytest_xlatune.logs.events import Event, LogReport, NewStart, Phase, PhaseChange
from pytest_xlatune.logs.reader import LogReader, read_log

__all__ = ["Event", "LogReader", "LogReport", "NewStart", "Phase", "PhaseChange", "read_log"]
