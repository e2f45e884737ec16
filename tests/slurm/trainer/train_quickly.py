"""The quickstart's trainer, whose steps say how long they take where nothing else runs.

The processes of the lab's nodes share this machine's cores with each other and with other tests.
JAX, the flags, what is dumped and traced are real; only the seconds follow from what a trial sets,
so that another load on the machine changes no verdict. It has a folder of its own: a sweep whose
trainer has changed files beside it begins anew.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "sweeps" / "quickstart"))

import train  # type: ignore[import-not-found]

STEP_S = 0.2
LEVEL = re.compile(r"--xla_backend_optimization_level=(\d)")
LEVEL_SAVES, FLOAT32_SAVES = 0.2, 0.3
NOISE = 0.004


def took_s(config: Any) -> float:
    """Return the seconds of a step: both settings save a part, and no two trials are equal."""
    levels = LEVEL.findall(os.environ.get("XLA_FLAGS", ""))
    level = int(levels[-1]) if levels else 3
    saved = (1 - LEVEL_SAVES * (level > 0)) * (1 - FLOAT32_SAVES * (config.dtype == "float32"))
    of_trial = config.run_name.rpartition("-")[0]
    noise = int(hashlib.sha256(of_trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
    took: float = STEP_S * saved * (1 + NOISE * noise)
    return took


class Report(train.StepReport):  # type: ignore[misc]
    """Writes a step as if the machine did nothing else."""

    def write(self, step: int, seconds: float, loss: float) -> None:
        super().write(step, took_s(self.config), loss)


train.StepReport = Report

if __name__ == "__main__":
    sys.exit(train.main())
