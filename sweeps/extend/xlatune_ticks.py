"""Steps of a trainer that prints ticks, and its lists of stuck workers."""

import re

from pytest_xlatune.logs.formats import BlockFinding, BlockReader, LogFormat
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, StepRecord

# tick 7 took 0.512 s, 1000.0 tokens a second
TICK = re.compile(r"tick (\d{1,9}) took (\d+\.\d+) s, (\d+\.\d+) tokens a second")


class Ticks(LogFormat):
    words = ("tokens a second", "stuck workers: ")

    def steps(self, text, rank):
        found = TICK.search(text)
        if found is None:
            return ()
        step, seconds, tokens = int(found[1]), float(found[2]), float(found[3])
        return (StepRecord(step=step, step_s=seconds, tgs=tokens, label=rank),)

    def reader(self):
        return Stuck()


class Stuck(BlockReader):
    """Stuck workers:      n7      end of the list"""

    def __init__(self):
        self.found, self.begun = [], 0

    def feed(self, block, before):
        for number, line in enumerate(block.decode(errors="replace").splitlines(), before + 1):
            if line.startswith("Stuck workers: "):
                self.begun = number
            elif self.begun and line.startswith("end of the list"):
                self.begun = 0
            elif self.begun:
                detail = f"worker {line.strip()}"
                cls = FailureClass.HANG_MID_TRAINING
                self.found.append(
                    BlockFinding(cls=cls, line=self.begun, detail=detail, action=Action.RETRY)
                )

    def findings(self):
        return self.found
