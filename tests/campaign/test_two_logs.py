"""The logs of two campaigns in one process: each has its own lines, and none has a secret."""

from __future__ import annotations

import logging
from pathlib import Path

from pytest_xlatune.campaign.log import write_log
from pytest_xlatune.model.redact import keep_secret
from tests.helpers.cluster import CellsStudy, Cluster, campaign, on, run


def test_a_log_hides_the_secrets_of_every_campaign_of_the_process(tmp_path: Path) -> None:
    one, other = "secret-of-the-first", "secret-of-the-second"
    keep_secret([one])
    keep_secret([other])
    with write_log(tmp_path / "a", "info") as path_a, write_log(tmp_path / "b", "info") as path_b:
        logging.getLogger("pytest_xlatune.tasks").warning("found %s, %s", one, other)
    for path in (path_a, path_b):
        assert "found (hidden), (hidden)" in path.read_text(encoding="utf-8")


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
