"""The example of docs/how-to/waves.md is a sweep that can be planned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pytest_xlatune import Gate
from pytest_xlatune.report.render import markdown
from pytest_xlatune.sweep.groups import UserOptions
from pytest_xlatune.tasks.plan import plan_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "waves.md"


def test_the_example_is_a_sweep(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module: dict[str, Any] = {}
    exec(code, module)
    sweep = module["SWEEP"]
    assert [slot.name for slot in sweep.slots("wave3")] == [f"stack-{at}" for at in range(1, 5)]
    assert [slot.name for slot in sweep.slots("wave4")] == [f"around-{at}" for at in range(1, 4)]
    resolved = sweep.resolve(
        UserOptions(
            values={
                "model_tag": "deepseek3-671b",
                "nodes": 8,
                "overrides": {"base_num_decoder_layers": "64"},
                "deployed": {"XLA_FLAGS": "--xla_gpu_autotune_level=2"},
            }
        )
    )
    assert resolved.has_no_env
    text = markdown(plan_of(resolved, resolved.study(), workdir=tmp_path))
    assert "| `m-16` | 8 | 16 | 8 | 5.2 % |" in text
    assert "`baseline-no-env`" in text
    there = resolved.elsewhere("sparse", sweep.profiles[:1], Gate())
    assert there.cell.overrides["sparse_matmul"] == "true"
    assert there.folder != resolved.folder
