"""The worlds in which error rates are measured: where nothing helps, and where something does."""

from __future__ import annotations

from dataclasses import replace

from simcluster import World

NULL = World(name="reference")
LATE = dict.fromkeys(range(25), 2.5)  # every profile warms up longer than the baseline
THREE = replace(NULL, effects=(0.02,) * 3)
NULLS = (
    NULL,
    replace(NULL, name="no drift", drift="none"),
    replace(NULL, name="job noise 0.3 %", sigma_job=0.003),
    replace(NULL, name="job noise 1.0 %", sigma_job=0.010),
    replace(NULL, name="linear drift 3 %", drift_size=0.03),
    replace(NULL, name="step of 3 %", drift="step", drift_size=0.03),
    replace(NULL, name="random walk 3 %", drift="walk", drift_size=0.03),
    replace(NULL, name="sine 1.5 %", drift="sine", drift_size=0.015),
    replace(NULL, name="t(4) job tails", heavy_tails=True),
    replace(NULL, name="3 % bad jobs", bad_jobs=0.03),
    replace(NULL, name="phi 0.9", phi=0.9),
    replace(NULL, name="first of block 0.5 % slow", cold_first=0.005),
    replace(NULL, name="10 % stragglers", stragglers=0.10),
    replace(NULL, name="3 % host pauses", pauses=0.03),
    replace(NULL, name="long warm-up in 10 %", long_warm=0.10),
    replace(NULL, name="long warm-up in all", long_warm=1.0),
    replace(NULL, name="long warm-up by profile, 25 steps", warming=LATE, steps=25),
    replace(NULL, name="profiled, 25 steps", profiler=True, steps=25),
    replace(NULL, name="40 profiles, 65 jobs", profiles=40, budget=65),
)
# the noise comes back every so many jobs: a block of the sweep has five to eight
PERIODIC = tuple(
    replace(NULL, name=f"sine of {period} jobs", drift="sine", period=period)
    for period in (5, 8, 10, 12, 20)
)
NOISY = (
    replace(NULL, name="one arm of 3x noise", noisy={20: 3.0}),
    replace(NULL, name="three arms of 3x noise", noisy=dict.fromkeys(range(18, 21), 3.0)),
    replace(NULL, name="six arms of 2x noise", noisy=dict.fromkeys(range(15, 21), 2.0)),
    replace(NULL, name="three arms of 5x noise", noisy=dict.fromkeys(range(18, 21), 5.0)),
)
# three blocks tell an arm's own noise badly
NOISY_FEW = tuple(
    replace(
        NULL, name=f"{name}, 12 in 30", noisy=dict.fromkeys(arms, times), profiles=12, budget=30
    )
    for name, arms, times in (
        ("three arms of 3x noise", range(9, 12), 3.0),
        ("four arms of 2x noise", range(8, 12), 2.0),
        ("three arms of 5x noise", range(9, 12), 5.0),
    )
)
FOUR = replace(NULL, name="four waves", waves=4)
LOSING = replace(NULL, name="three arms lose half of their runs",
                 losing=dict.fromkeys(range(18, 21), 0.5))  # fmt: skip
SLOW_LOST = replace(LOSING, name="three arms lose their slower half", slow_ones=True)
HANGING = (
    replace(LOSING, name="one at +4 % that hangs in half of its runs", effects=(0.04,),
            losing={0: 0.5}),
)  # fmt: skip
SPARE = replace(NULL, name="65 jobs", budget=65)
LONG = replace(NULL, name="105 steps a job", steps=105)
FAILING = replace(NULL, name="5 % of jobs fail", failed=0.05)
# four slots for stacks of what led, and 25 profiles, in the same 50 jobs
STACKED = replace(NULL, name="stacks of what led", stacks=4)
# an evidence run of the baseline gives 25 of 75 candidates a slot, in the same 50 jobs
CHOSEN = replace(NULL, name="25 of 75 chosen by evidence", profiles=75, slots=25)
HARMFUL = replace(NULL, name="all at -1 %", other=-0.01)
POWERS = (
    replace(THREE, name="three at +2 %, noise 0.3 %", sigma_job=0.003),
    replace(THREE, name="three at +2 %, noise 0.6 %"),
    replace(THREE, name="three at +2 %, noise 1.0 %", sigma_job=0.010),
    replace(THREE, name="three at +2 %, step of 3 %", drift="step", drift_size=0.03),
    replace(THREE, name="three at +2 %, 10 % stragglers", stragglers=0.10),
    replace(THREE, name="three at +2 %, 40 in 65", profiles=40, budget=65),
    replace(NULL, name="three at +1 %", effects=(0.01,) * 3),
    replace(NULL, name="one at +5 %", effects=(0.05,)),
    replace(NULL, name="one at +5 %, noise 1.0 %", effects=(0.05,), sigma_job=0.010),
    replace(THREE, name="three at +2 %, long warm-up in all", long_warm=1.0),
    replace(THREE, name="three at +2 %, long warm-up by profile", warming=LATE),
    replace(THREE, name="three at +2 %, long warm-up by profile, 25 steps", warming=LATE, steps=25),
    replace(STACKED, name="three at +2 %, stacks of what led", effects=(0.02,) * 3),
    replace(CHOSEN, name="three at +2 %, 25 of 75 chosen by evidence", effects=(0.02,) * 3),
)
STOPS = (
    replace(NULL, name="one at +4 %", effects=(0.04,)),
    replace(NULL, name="one at +6 %", effects=(0.06,)),
)
BOUNDS = (
    replace(NULL, name="one at +2 %, noise 0.3 %", effects=(0.02,), sigma_job=0.003),
    replace(NULL, name="one at +3 %, noise 0.3 %", effects=(0.03,), sigma_job=0.003),
)
STRAGGLING = replace(
    NULL, name="one at +2 % that straggles 15 %", effects=(0.02,), straggling={0: 0.15}
)
# flags that harm, some by far: a third to three quarters of the profiles of real catalogs
_SPREAD = tuple(-0.03 - 0.27 * at / 11 for at in range(12))
HARMED = (
    replace(THREE, name="three at +2 %, twelve at -10 %", effects=(0.02,) * 3 + (-0.10,) * 12),
    replace(THREE, name="three at +2 %, twelve at -3 to -30 %", effects=(0.02,) * 3 + _SPREAD),
    replace(THREE, name="three at +2 %, nine at -20 %", effects=(0.02,) * 3 + (-0.20,) * 9),
    replace(THREE, name="three at +2 %, twelve at -30 %", effects=(0.02,) * 3 + (-0.30,) * 12),
    replace(THREE, name="three at +2 %, six at -10 %, 12 in 30", effects=(0.02,) * 3 + (-0.10,) * 6,
            profiles=12, budget=30),
)  # fmt: skip
# jobs that are slow by the machine, whatever they run
SLOW = replace(NULL, name="10 % of jobs 3 % slow", bad_jobs=0.10, bad_size=(0.03, 0.03))
SLOWER = (
    SLOW,
    replace(SLOW, name="3 % of jobs 3 % slow", bad_jobs=0.03),
)
SLOWED = tuple(
    replace(each, name=f"three at +2 %, {each.name}", effects=(0.02,) * 3) for each in SLOWER
)
# budgets above that of six blocks, where noise is large
LARGE = tuple(
    replace(THREE, name=f"three at +2 %, noise 1.0 %, {jobs} jobs", sigma_job=0.010, budget=jobs)
    for jobs in (80, 100, 150)
)
# as in the reference, but from where a power bar is taken
ONE = replace(NULL, name="one at +2 %, noise 0.6 %", effects=(0.02,))
THREE_FOUR = replace(THREE, name="three at +2 %, four waves", waves=4)
# the worlds of the page's tables
ALL = (
    *NULLS, *PERIODIC, FOUR, SPARE, *NOISY, LOSING, SLOW_LOST, LONG, FAILING,
    STACKED, CHOSEN, HARMFUL, *POWERS, ONE, THREE_FOUR, *STOPS, *BOUNDS, STRAGGLING,
    *HANGING, *HARMED, *LARGE,
)  # fmt: skip
# measured by name alone
MORE = (
    *SLOWER,
    *SLOWED,
    *NOISY_FEW,
    replace(NULL, name="nothing helps, 8 in 25", profiles=8, budget=25),
    replace(THREE, name="three at +2 %, 8 in 25", profiles=8, budget=25),
)
