"""The plot of a study of thresholds shows the figures of the JSON text, and nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape

import pytest

from pytest_xlatune.guests.cvs.document import thresholds
from pytest_xlatune.guests.cvs.thresholds import Demand, ThresholdStudy
from pytest_xlatune.model.result import NoiseRecord, Score, TrialResult, TrialStatus
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.report import Subject
from tests.helpers.of_studies import subject
from tests.report.test_study_plots import scores, shown
from tests.studies import test_nodes as single

DEMANDS = (
    Demand(metric="tokens_per_sec_per_gpu", bound="min", value=800.0),
    Demand(metric="tflops_per_sec_per_gpu", bound="min", value=400.0),
    Demand(metric="step_time_seconds", bound="within", value=19.99, tolerance_pct=0.1),
    Demand(metric="tokens_per_sec_total", bound="min", value=0.95, of="tokens_per_sec_per_gpu"),
    Demand(metric="step_time_mean_ms", bound="max", value=21000.0),
    Demand(metric="step_time_p95_ms"),
    Demand(metric="final_loss", bound="max", value=8.5),
    Demand(metric="time_to_target_seconds", bound="max", value=100.0),
)


def jobs_of(jobs: int = 5, *, over: int = 5, lost: int = 0) -> Subject:
    """Jobs at 820 tokens/s a device, of which `over` have ended and `lost` without a score."""
    study = ThresholdStudy(cell=replace(single.CELL, devices=8), demands=DEMANDS, jobs=jobs)
    history = []
    for at, trial in enumerate(study.propose([])[:over]):
        tgs = 820.0 * math.exp(single.NOISE[at % len(single.NOISE)])
        score = Score(
            value=math.log(tgs), tgs=tgs, tflops=tgs * 0.475, step_s=16384 / tgs, loss=7.6,
            n_steps=10, window=(5, 14),
            timings=tuple((step, 16384 / tgs) for step in range(15)),
        )  # fmt: skip
        if at < lost:
            result = TrialResult(trial=trial, status=TrialStatus.UNMEASURED, job_ids=(str(at),))
        else:
            result = TrialResult(
                trial=trial, status=TrialStatus.MEASURED, score=score, job_ids=(str(14600 + at),)
            )
        history.append(result)
    return subject(study, history, study.conclude(history))


WORDS = {"EQUIVALENT": "pass", "SLOWER": "fail", "INCONCLUSIVE": "cannot tell"}


@pytest.mark.parametrize("lost", [0, 1], ids=["every job tells", "a job is lost"])
def test_each_metric_stands_against_the_limits_of_the_json(lost: int) -> None:
    text, told = shown(thresholds, jobs_of(6, over=6, lost=lost))
    rows = dict(re.findall(r'data-metric="([^"]*)">(.*?)</tr>', text, re.DOTALL))
    record = told["conclusion"]["record"]
    assert rows.keys() == {each["metric"] for each in record["metrics"]}
    kinds = {each["arm"]: each["kind"] for each in told["conclusion"]["verdicts"]}
    seen = set()
    for each in record["metrics"]:
        row = rows[each["metric"]]
        limits = [each[end] for end in ("least", "most") if each[end] is not None]
        word = WORDS[kinds[each["metric"]]] if limits else "recorded"
        looks = "unsure" if word == "cannot tell" else word
        seen.add(looks)
        cells = [unescape(cell) for cell in re.findall(r"<td class=[^>]*>([^<]*)</td>", row)]
        mean = ABSENT if each["mean"] is None else f"{each['mean']:.6g}"
        assert cells == [mean, each["demand"], str(len(each["jobs"])), word]
        assert f'class="arm {looks}"' in row
        assert f'class="said {looks}"' in row
        number = r'="([-\d.]+)%"'
        marks = [float(x) for x in re.findall(rf'class="limit" x1{number}', row)]
        dots = re.findall(rf'class="job" cx{number}.*?<title>(.*?)</title>', row)
        assert [said for _, said in dots] == [
            f"job {job['job']}: {job['value']:.6g}" for job in each["jobs"]
        ]
        places = [
            *zip(marks, limits, strict=True),
            *((float(x), job["value"]) for (x, _), job in zip(dots, each["jobs"], strict=True)),
        ]
        for name, ends in (("whole", ("mean",)), ("ends", ("low", "high"))):
            found = re.findall(rf'class="{name}"[^/]*/', row)
            figures = [each[end] for end in ends if each[end] is not None]
            drawn_at = [float(x) for x in re.findall(rf"c?x[12]?{number}", "".join(found))]
            places += zip(drawn_at, figures, strict=True)
        if len({value for _, value in places}) > 1:  # one line goes through all of them
            (at, low), *_, (to, high) = sorted(places, key=lambda pair: pair[1])
            for place, value in places:
                expected = at + (value - low) / (high - low) * (to - at)
                assert place == pytest.approx(expected, abs=0.02), each["metric"]
        shade = re.findall(rf'class="refused" x{number} width{number}', row)
        edges = [0.0] * (each["least"] is not None) + [100.0] * (each["most"] is not None)
        for (x, width), mark, end in zip(shade, marks, edges, strict=True):
            assert sorted((float(x), float(x) + float(width))) == pytest.approx(sorted((mark, end)))
    assert seen - {"pass"} == {"fail", "unsure", "recorded"}
    assert ("pass" in seen) == (not lost), "no metric passes that a job does not tell"
    jobs = {job["job"]: job["value"] for job in record["metrics"][0]["jobs"]}
    assert jobs == {job: tgs for job, (_, _, tgs) in scores(told).items()}, "the metric is TGS"


def test_a_record_of_another_kind_has_no_limits_to_show() -> None:
    subject = jobs_of()
    older = replace(subject.conclusion, record=NoiseRecord(sigma=0.002))
    assert thresholds(replace(subject, conclusion=older)).drawn == ()
    assert thresholds(jobs_of(over=0)).drawn == ()
