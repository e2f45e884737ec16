"""`xlatune watch --page`: what it serves, to whom, and what it leaves alone."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.tasks.publish import publish
from pytest_xlatune.tasks.watch import Watcher
from pytest_xlatune.tasks.watched_pages import HOST, WatchedPages, serving, tunnel_line
from tests.helpers import scripted
from tests.helpers.scripted import ScriptedExecutor, campaign, run

NOW_S = 2_000_000_000.0


@pytest.fixture
def pages(tmp_path: Path) -> WatchedPages:
    """A sweep that is over, with its reports, and one that has begun."""
    done = campaign(tmp_path / "work", ScriptedExecutor())
    run(done)
    publish(done.setup.folder, tmp_path / "reports")
    axes = type(scripted.CELL.parallelism).parse("PP=8")
    begun = campaign(
        tmp_path / "other", ScriptedExecutor(), cell=replace(scripted.CELL, parallelism=axes)
    )
    for _ in range(3):
        begun.turn()
    work = done.setup.folder.parents[1]
    begun.setup.folder.rename(done.setup.folder.with_name("begun"))
    return WatchedPages(Watcher(work), work, tmp_path / "reports")


def text_at(pages: WatchedPages, address: str) -> str:
    found = pages.answer(address, NOW_S)
    assert found is not None, address
    return found.text


def links(text: str) -> list[str]:
    return [each for each in re.findall(r'href="([^"#]+)"', text) if each]


def test_every_link_leads_to_a_page_and_back(pages: WatchedPages) -> None:
    seen, left = set[str](), [""]
    while left:
        address = left.pop()
        if address in seen:
            continue
        seen.add(address)
        found = pages.answer(address, NOW_S)
        assert found is not None, address
        if found.kind == "text/html":
            base = f"http://x/t/{address}"
            targets = [urljoin(base, each) for each in links(found.text)]
            assert all(each.startswith("http://x/t/") for each in targets), address
            left += [each.removeprefix("http://x/t/") for each in targets]
    assert {"history", "reports/index.html", "reports/pretend-tuning.html"} <= seen
    assert len([each for each in seen if each.startswith("cell/")]) == 2
    assert any(each.endswith(".json") for each in seen)


def test_a_page_is_of_the_ledger_now(pages: WatchedPages) -> None:
    index = text_at(pages, "")
    assert "2 cells" in index
    (begun,) = [
        each for each in links(index) if "cell/" in each and 'class="live' in text_at(pages, each)
    ]
    assert "Stands still since" in text_at(pages, begun)
    assert "pretend PP=8" in text_at(pages, begun)
    assert "All cells over time" in text_at(pages, "history")


@pytest.mark.parametrize(
    "address",
    [
        "../ledger.jsonl",
        "reports/../work",
        "reports/%2e%2e/x",
        "cell/pretend",
        "cell/a/b",
        "nothing",
    ],
)
def test_an_address_that_no_page_names_leads_nowhere(pages: WatchedPages, address: str) -> None:
    assert pages.answer(address, NOW_S) is None


def test_a_ledger_that_cannot_be_read_is_told_on_its_page(
    pages: WatchedPages, tmp_path: Path
) -> None:
    ledger = min(tmp_path.rglob(LEDGER))
    text_at(pages, "")
    ledger.write_text("<script>no ledger\n", encoding="utf-8")
    index = text_at(pages, "")
    assert "cannot be read" in index
    told = [text_at(pages, each) for each in links(index) if "cell/" in each]
    assert len([each for each in told if "It cannot be shown: " in each]) == 1
    assert not any("<script>no" in each for each in (index, *told))


@pytest.fixture
def address(pages: WatchedPages) -> Iterator[str]:
    with serving(pages.answer, 0) as (server, address):
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield address
        server.shutdown()
        thread.join()


def status(address: str, method: str = "GET") -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method=method)) as found:
            code: int = found.status
            return code
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_stranger_on_the_same_machine_sees_nothing(address: str) -> None:
    assert address.startswith(f"http://{HOST}:")
    with urllib.request.urlopen(address) as found:
        assert "2 cells" in found.read().decode()
        assert found.headers["Cache-Control"] == "no-store"
        assert found.headers["Server"].strip() == "xlatune"
    assert status(address, "HEAD") == 200
    root, token = address.rstrip("/").rsplit("/", 1)
    for other in ("", "/", f"/{token[:-1]}/", f"/{token}x/", f"/{token.swapcase()}/", "/%00/"):
        assert status(f"{root}{other}") == 404, other
    assert status(address, "POST") == 501


def test_a_port_that_is_taken_is_told_and_without_one_another_is_found(
    pages: WatchedPages, address: str
) -> None:
    port = int(address.split(":")[2].partition("/")[0])
    with pytest.raises(ConfigError, match=f"--page {port}: .*name another port"):
        serving(pages.answer, port).__enter__()
    with pytest.raises(ConfigError, match="--page 70000"):
        serving(pages.answer, 70000).__enter__()
    with serving(pages.answer, None) as (one, _), serving(pages.answer, None) as (two, _):
        assert one.server_port != two.server_port
    assert f"-L {port}:{HOST}:{port} " in tunnel_line(port)


def test_pages_of_nothing_are_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--page", "--workdir", str(tmp_path)]) == 2
    assert "no sweep was measured below" in capsys.readouterr().err
