"""The catalog's rules hold for what waves derive: singles, stacks, values of a ladder."""

from __future__ import annotations

from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE, Profile, parse_flags, profile
from pytest_xlatune.studies.derived import Around, Stacks
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.candidates import (
    CANDIDATES,
    PIPELINE,
    evidence,
    led,
    rule,
    run,
    study,
)
from tests.helpers.knobs import AG, GIB, of_wave

DECOMPOSER = "xla_gpu_collective_permute_decomposer_threshold"
LADDER: dict[str, tuple[str, ...]] = {"NCCL_BUFFSIZE": ("8388608", "16M", "33554432")}


def test_a_stack_of_flags_that_exclude_each_other_is_passed_over() -> None:
    memory = profile("mem", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": ".95"})
    newer = profile("client-mem", env={"XLA_CLIENT_MEM_FRACTION": ".95"})
    plain = profile("plain", "--xla_gpu_enable_triton_gemm=false")
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(profiles=(memory, newer, plain, *others), derived=(Stacks(slots=3, of=2),))
    done = led(sweep, ["mem", "client-mem", "plain"])
    assert "mem+client-mem" in of_wave(done, "wave3")  # without a context no rule is held
    held = replace(sweep, context=Context())
    done = led(held, ["mem", "client-mem", "plain"])
    assert of_wave(done, "wave3") == {"mem+plain", "client-mem+plain"}
    said = [
        each
        for each in held.decide(done).conclusion.notes
        if sentence(each).startswith("wave3: left out")
    ]
    (why,) = map(sentence, said)
    assert why.startswith("wave3: left out: mem+client-mem (XLA_PYTHON_CLIENT_MEM_FRACTION")
    assert "which JAX refuses" in why


RS = "xla_gpu_reduce_scatter_combine_threshold_bytes"


def test_what_does_nothing_to_the_program_takes_no_slot() -> None:
    candidates = (profile("rs-1g", f"--{RS}={GIB}"), *CANDIDATES[:1])
    own = rule(slots=2, candidates=candidates, aims={})
    sweep = study(own, context=Context())
    assert {
        each.profile.id for each in sweep.decide([evidence()]).due if each.stage == "wave2"
    } == {
        BASELINE.id,
        "ag-1g",
    }
    assert "left out: rs-1g" in sentence(sweep.state([evidence()]).ranked.arms.messages[-1])
    # a trace alone names no collective, and nothing is guessed
    traced = evidence(replace(PIPELINE, kinds=None))
    assert "rs-1g" in {each.profile.id for each in sweep.decide([traced]).due}


def test_a_stack_with_a_part_that_does_nothing_to_the_program_is_passed_over() -> None:
    flag = profile("ag-1g", f"--{AG}={GIB}")
    channels = profile("channels", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"})
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(
        profiles=(flag, channels, *others),
        derived=(Stacks(slots=1, of=2),),
        context=Context(),
    )
    done = [each for each in led(sweep, ["ag-1g", "channels"]) if each.trial.stage == "wave2"]
    assert sweep.state(done).ranked.arms.slots["stack-1"].id == "ag-1g+channels"
    gathers = evidence(replace(PIPELINE, kinds=("all-gather",)))
    assert not sweep.state([*done, gathers]).ranked.arms.slots
    (said,) = sweep.state([*done, gathers]).ranked.arms.messages
    assert sentence(said).startswith(
        "wave3: left out: ag-1g+channels (NCCL_NCHANNELS_PER_NET_PEER does"
    )
    # what has a trial stays, whatever is recorded since
    begun = [each for each in led(sweep, ["ag-1g", "channels"]) if each.trial.stage != "confirm"]
    assert "stack-1" in sweep.state([*begun, gathers]).ranked.arms.slots


def test_a_value_of_a_ladder_that_would_be_misread_is_passed_over() -> None:
    buffer = profile("buffer", env={"NCCL_BUFFSIZE": "8388608"})
    others = tuple(profile(f"other-{at}", f"--xla_gpu_knob={at}") for at in range(4))
    sweep = study(
        profiles=(buffer, *others),
        derived=(Around(slots=2, ladders=LADDER),),
        context=Context(),
    )
    done = led(sweep, ["buffer", "buffer.16m", "buffer.33554432"])
    assert of_wave(done, "wave4") == set()
    (said,) = (
        each for each in sweep.decide(done).conclusion.notes if sentence(each).startswith("wave4: ")
    )
    assert "NCCL_BUFFSIZE=16M is read as 16, the rest" in sentence(said)


def test_a_value_that_is_deployed_already_is_no_candidate() -> None:
    deployed = parse_flags(f"--{AG}={GIB}")
    sweep = study(
        rule(candidates=CANDIDATES[:2], evidence=False), context=Context(deployed=deployed)
    )
    done = run(sweep)
    assert [each.id for each in sweep.state(done).ranked.arms.slots.values()] == ["ag-2g"]


def test_the_ground_goes_into_the_ledger_with_the_study() -> None:
    sweep = study(context=Context(deployed=parse_flags("--xla_a=1"), env={"NCCL_DEBUG": "WARN"}))
    assert TuningStudy.from_json(sweep.to_json()) == sweep


def test_every_candidate_of_the_catalog_says_what_it_acts_on_or_is_known_not_to() -> None:
    named = [each for each in load().entries if each.status == "candidate" and each.values]
    silent = {each.slug for each in named if not each.aims}
    assert silent == {"mem"}  # the size of a pool shows in no step
    assert isinstance(CANDIDATES[0], Profile)
