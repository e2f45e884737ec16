"""The logs of two campaigns in one process: each has its own lines, and none has a secret."""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune.campaign.log import write_log
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run


def test_a_log_has_the_lines_of_its_own_campaign(tmp_path: Path) -> None:
    clusters = Cluster(), Cluster()
    each = [
        campaign(tmp_path / name, cluster, CellsStudy(cells=(on(f"node00{n}"),)))
        for n, (name, cluster) in enumerate(zip("ab", clusters, strict=True), start=1)
    ]
    logs = [write_log(one.folder, "info") for one in each]
    with logs[0] as path_a, logs[1] as path_b:
        for one, cluster in zip(each, clusters, strict=True):
            run(one, cluster)
    text_a, text_b = (path.read_text(encoding="utf-8") for path in (path_a, path_b))
    assert "submitted node001" in text_a
    assert "submitted node002" in text_b
    assert "node002" not in text_a
    assert "node001" not in text_b
