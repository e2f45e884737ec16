"""The lists of stuck workers that a trainer prints."""

from pytest_xlatune.logs.formats import BlockFinding, BlockReader, LogFormat
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action


class Ticks(LogFormat):
    words = ("stuck workers: ",)
    openings = ("stuck workers: ",)
    heads = ("Stuck workers: ",)

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

    def told(self):
        return self.found
