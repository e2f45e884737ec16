"""A trainer that only pretends to rotate: it writes journal and step lines by the spec it is given.

Processes wait for each other before each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

SPEC = json.loads(Path("rotation.json").read_text(encoding="utf-8"))
RANK = os.environ.get("SLURM_PROCID", "0")
STEP_S = {"slow": 0.03}


# as another process: the worker in front of this one finds no step, and says so
def say(event: str, **said: object) -> None:
    with Path(f"rotation.{RANK}.jsonl").open("a", encoding="utf-8") as journal:
        journal.write(json.dumps({"event": event, "pid": 1, **said}) + "\n")


def wait_for_others(call: int) -> None:
    """Go on once every process has come to this call, as those of a step that communicates."""
    Path(f"at.{RANK}").write_text(str(call), encoding="utf-8")
    for rank in range(int(os.environ.get("SLURM_NTASKS", "1"))):
        while not Path(f"at.{rank}").exists() or int(Path(f"at.{rank}").read_text() or -1) < call:
            time.sleep(0.01)


def log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    names = [each["id"] for each in SPEC["programs"]]
    say("start", turn_steps=SPEC["turn_steps"])
    say("jax", version="0.10.2")
    say("found", name="train_step")
    log("Memstats: After params initialized:")
    for name in names:
        say("compile", program=name)
        time.sleep(0.05)
        say("compiled", program=name, compile_s=0.05)
    calls = SPEC["first_step"] + len(SPEC["order"]) * SPEC["turn_steps"]
    name = names[0]
    for call in range(calls):
        turn, at = divmod(call - SPEC["first_step"], SPEC["turn_steps"])
        if call >= SPEC["first_step"] and at == 0:
            name = names[SPEC["order"][turn]]
            say("turn", program=name, first_call=call)
        wait_for_others(call)
        step_s = STEP_S.get(name, 0.02)
        time.sleep(step_s)
        log(
            f"completed step: {call}, seconds: {step_s:.3f}, TFLOP/s/device: 0.1, "
            f"Tokens/s/device: {512 / step_s:.3f}, total_weights: 512, loss: 7.1"
        )
    say("end", calls=calls)


main()
