"""The words for reasons: one sentence for each kind, English here and the others in `po/`.

    sentence(Reason(Why.LIKELY_SLOWER, runs=2))       "very likely slower (2 runs): more than ..."
    sentence(reason, Say(Language.CHINESE))           the same in Chinese
    plainly(reason), joined(reasons)                  for a document, which has a markup of its own

A sentence names the fields of its reason, each with the way in which it is written:

    {arm}  {p:.3f}  {asked!r}     as Python writes it; "" where the field is None
    {change:percent}              a function of `model.text`, and a few of its kind, see `_WRITERS`
    {jobs:+job}                   a counted noun, 1 job or 3 jobs
    {jobs:is|are}                 the first of two words for one, else the second
    {change:percent or unknown}   other words where the field is None
    {arms:, }                     several fields, with what stands between them
    {arms:first 6}  {x:lines 3}   the first of several, and how many more
    {full:change}                 a change and the ends of its interval

A field that is itself a reason is its sentence. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.text import (
    counted,
    duration,
    fine,
    interval,
    percent,
    points,
    size,
)
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.language import ENGLISH, N_, Say

WORDS: Mapping[Why, str] = {
    Why.SAID: "{text}",
    # scores: why a job has none
    Why.NO_STEP: N_("no step was logged"),
    Why.LOSS_NOT_FINITE: N_("the loss is not finite from step {step} on"),
    Why.NO_TOKENS: N_(
        "no step of the window tells Tokens/s/device, and the tokens of a step are not declared: "
        "give the cell per_device_batch_size and max_target_length, or a command that reads logs "
        "--tokens"
    ),
    Why.NO_FIGURE: N_("no line prints `{field}: NUMBER`"),
    Why.NO_BANDWIDTH: N_("no line prints `# Avg bus bandwidth : NUMBER`"),
    Why.FEW_FIGURES: N_("{steps} steps of the window print `{field}: NUMBER`, {needed} needed"),
    Why.NO_MEASURE: N_("{figure} is {value:g}: only a positive, finite figure has a score"),
    Why.STEPS_NOT_KEPT: N_("the seconds of its steps were not kept: it has one window only"),
    Why.FEW_STEPS: N_(
        "{steps:+usable step} in the window {first}-{last}, {needed} needed (last step seen: "
        "{seen})"
    ),
    Why.FEW_LEFT: N_(
        "{steps:+usable step} left after {outliers:+outlier} in the window {first}-{last}, "
        "{needed} needed; run more steps"
    ),
    Why.TOO_SHORT: N_("{steps:+usable step} in {of}, {needed} needed; run more steps"),
    Why.TOO_SHORT_FOR: N_(
        "{steps:+usable step} in {of}, {needed} needed: {why:, }; run more steps"
    ),
    Why.PROFILER_TAKES: N_("the profiler takes steps {first}-{last}"),
    Why.EVALUATION_TAKES: N_("an evaluation every {every} steps takes three steps each"),
    Why.RESUMED_AT: N_("the run resumed at step {step}"),
    # validity: settings and losses
    Why.CONTRADICTED: N_(
        "{setting} is {seen:or not set} in {witness}, expected {asked!r}: the profile was not "
        "in effect"
    ),
    Why.NOT_SET: N_("not set"),
    Why.CUT_OFF: N_("{seen:or not set}, for XLA stops reading at {at!r}"),
    Why.OPTION_LEFT_OUT: N_("left out"),
    Why.OPTION_AT_DEFAULT: N_("at its default"),
    Why.PGLE_UNREAD: N_(
        "XLA could not read {file}, the profile for its scheduler, and scheduled without it"
    ),
    Why.PGLE_OF_ANOTHER: N_(
        "XLA found no operation of {file} in any program, and scheduled without it: the profile is "
        "of another program. Where autotuning chooses other kernels it is another one, too; "
        "Protocol(autotune_cache=...) pins them"
    ),
    Why.ONLY_ASKED: N_("asked, and nothing that reads it says that it is in effect: {names:, }"),
    Why.NOT_SEEN: N_("not seen, although what reads it was asked to say so: {names:, }"),
    Why.OTHER_LOSS: N_(
        "its loss is {loss:.6g}, the baseline's {reference:.6g}: more than {tolerance:.0%} "
        "apart, so it does not compute the same"
    ),
    # the window of all trials
    Why.WINDOW_KEPT: N_(
        "steady state begins at step {start}, the protocol's window at step {declared}: it "
        "stays there, for the steps of {trials} trials were not kept; measure again"
    ),
    Why.WINDOW_TOO_SHORT: N_(
        "steady state begins at step {start}, the protocol's window at step {declared}: {few}"
    ),
    Why.WINDOW_MOVED: N_(
        "steady state begins at step {start}, the protocol's window at step {declared}: the "
        "window of all trials starts at step {first}"
    ),
    Why.WINDOW_MOVED_SHORT: N_(
        "steady state begins at step {start}, the protocol's window at step {declared}: the "
        "window of all trials starts at step {first}; {few}"
    ),
    Why.USE_MORE_STEPS: N_("{steps} steps are too few, use steps={use} for the whole cell"),
    # comparisons: the methods, and why there is none
    Why.FEW_DF: N_("{df} degrees of freedom are left, {needed} needed: too few trials"),
    Why.SCORES_NOT_FINITE: N_("the scores are not finite"),
    Why.SCORES_COPIED: N_("all scores are exactly equal: copies are no measurements"),
    Why.NOT_IN_BLOCKS: N_("no block holds both this profile and a baseline"),
    Why.DUNNETT: N_(
        "Dunnett, K={family}, {blocks} blocks, {baselines} baselines, alpha {alpha:g}{own}"
    ),
    Why.BONFERRONI: N_(
        "Bonferroni, cells missing, K={family}, {blocks} blocks, {baselines} baselines, alpha "
        "{alpha:g}{own}"
    ),
    Why.OWN_NOISE: N_(", its own noise"),
    Why.WELCH: N_("two samples of {beside} and {own} jobs, Welch, K={family}, alpha {alpha:g}"),
    # the plan of a sweep, and what it can see
    Why.LAYOUT: N_("{again}{finalists:+finalist} in {blocks}, {baselines:+baseline}{pair} in each"),
    Why.BLOCKS: N_("{blocks:+block}"),
    Why.FIRST_BLOCK: N_("the first block, {rest:, }"),
    Why.FIRST_BLOCKS: N_("the first {blocks} blocks, {rest:, }"),
    Why.BEST_IN_MORE: N_("the best {best} in {blocks} more"),
    Why.BEST_AGAIN: N_("the best {best} once more, then "),
    Why.AND_THE_PAIR: N_(" and the pair of wave 1"),
    Why.KEPT_FOR_SPARE: N_(
        "{jobs:+job} of {budget} {jobs:is|are} kept for spare blocks, which run only where "
        "nothing is faster{why}"
    ),
    Why.ONE_MORE_BLOCK: N_(" (one more block takes {jobs})"),
    Why.MOST_BLOCKS: N_(" ({blocks} blocks are the most planned here; `blocks=` asks for more)"),
    Why.RANKS_ONLY: N_(
        "{budget} jobs screen {profiles:+profile} and leave too few for the {blocks} blocks "
        "that confirm one: ask for {least} jobs at least, {recommended} are recommended"
    ),
    Why.RANKING_ONLY: N_("ranking only: {why}"),
    Why.OUTLOOK: N_(
        "at {noise} a sweep of {profiles} profiles finds these gains and larger ones with 80 % "
        "power (in brackets: those of a finalist): {seen:, }"
    ),
    Why.JOB_NOISE: N_("a job noise of {sigma:fine}"),
    Why.BUDGET_RANKS: N_("{jobs} jobs: ranking only"),
    Why.BUDGET_FINDS: N_("{jobs} jobs: {start:percent} ({finalist:percent})"),
    # noise between node slots
    Why.SLOT_NOISE: N_("noise of a trial on its slot: {sigma:fine} ({trials} trials)"),
    Why.SLOT_SLOWER: N_(
        "slot {slot} ({nodes}) is slower than the others by {loss:size} (95 % interval "
        "{low:size} to {high:size})"
    ),
    Why.NO_SLOT_SLOWER: N_(
        "no slot is slower than the others by more than noise; {seen:size} would be seen"
    ),
    Why.NEIGHBOURS_UNTOLD: N_(
        "cannot tell whether neighbours disturb each other: the slots never ran at the same time"
    ),
    Why.NEIGHBOURS_QUIET: N_(
        "neighbours do not disturb each other by more than noise: {change:percent} with all "
        "slots busy (95 % interval {low:percent} to {high:percent})"
    ),
    Why.NEIGHBOURS_SLOW: N_(
        "neighbours slow each other down: {change:percent} with all slots busy (95 % interval "
        "{low:percent} to {high:percent})"
    ),
    Why.NEIGHBOURS_CHANGE: N_(
        "neighbours change each other's speed: {change:percent} with all slots busy (95 % "
        "interval {low:percent} to {high:percent})"
    ),
    Why.ON_THE_CPU: N_("it found no GPU and ran on the CPU, so its steps have no speed"),
    Why.OTHER_DEVICE: N_(
        "it ran on {ran} and {arm} on {was}, as {witness} shows, so it has no score beside that"
    ),
    # bandwidth tests
    Why.WRONG_VALUES: N_(
        "the test counts {wrong} wrong values: the data are corrupt, so it has no speed"
    ),
    Why.SEVERAL_SIZES: N_(
        "the test measured {sizes} sizes, and their average is no speed; measure one: give -b "
        "and -e the same size"
    ),
    Why.NO_SUMMARY: N_(
        "the table of the test has {sizes:+size} and no line `# Avg bus bandwidth : NUMBER` after "
        "it: the test was cut, or its last lines were left out"
    ),
    # rotations: their turns, and what they rank
    Why.NO_TURN_BEGAN: N_("no turn began"),
    Why.CALLS_APART: N_(
        "the log has {lines:+step}, and the step's program was called {calls} times: whose turn a "
        "step was cannot be told"
    ),
    Why.CALLS_A_STEP: N_(
        "the trainer calls the program of its step {times} times for each step of its log: whose "
        "turn a step was cannot be told"
    ),
    Why.STEP_MADE_ANEW: N_(
        "the trainer made its step anew as another program, for the first time before call {call}, "
        "so that {calls} of {lines:+step} took turns: let it call jax.jit once, before its loop"
    ),
    Why.ODD_CALLS: N_(
        "{odd} of {calls} calls of the step had other arguments than the first ones{said}, and the "
        "trainer's own program ran them, so that no turn of the baseline is left: give each step "
        "the same shapes and static values, for example drop a short last batch"
    ),
    Why.LINES_TOO_RARE: N_(
        "the log has a line every {every} steps, and a turn has {turn_steps:+step}: let the "
        "trainer write a line for each step"
    ),
    Why.NO_TURN_OF_BASELINE: N_("the log tells {told} of {turns:+turn}, and none of the baseline"),
    Why.ROTATION_OFF: N_("rotation is off"),
    Why.NO_ROTATION_ON_SLOTS: N_(
        "a sweep on several node slots runs each trial as a job of its own"
    ),
    Why.ROTATION_SAVES_NOTHING: N_(
        "with rotations the plan takes {jobs:+job} and {took_s:time}, without them "
        "{others:+job} and {other_s:time}; --xlatune-rotate on rotates all the same"
    ),
    Why.NONE_ROTATES: N_("no profile rotates: {why}"),
    Why.ROTATES: N_(
        "ranked in rotations: {arms:, }. A look, then {rotations:+rotation}, the baseline {copies} "
        "times in each. A turn has {turn_steps:+step}, a rotation {rounds:+round} or so: {steps} "
        "steps. Ordinary jobs decide"
    ),
    Why.STAYS_A_JOB: N_("as jobs: {arms:, }, because {why}"),
    Why.JOBS_OF_BOTH_PLANS: N_(
        "this plan takes {jobs:+job} and {steps} steps of the trainer at most, without rotation "
        "{others:+job} and {other_steps} steps"
    ),
    Why.LOOK_FINDS_NONE: N_("all profiles are jobs, because programs cannot take turns: {said}"),
    Why.FIRST_ROTATION_FAILED: N_(
        "all profiles are jobs, because the first rotation measured nothing: {said}"
    ),
    Why.NO_TURN_OF_ITS_OWN: N_("it had no turn that counts"),
    Why.ROTATION_DIED_OF: N_("a rotation died of it: {cls:meaning}"),
    Why.PROFILES_ROTATE: N_(
        "{profiles:+profile} took turns, to be ranked: {rotations:+rotation} with {turns:+turn} so "
        "far"
    ),
    Why.ROTATION_CUT: N_(
        "a time limit ended rotation {number}: {turns} of its {planned:+turn} count, longer jobs "
        "hold them all"
    ),
    # trials that are not run, and those of a table
    Why.TABLE_SAYS: N_("the table says: {status}"),
    Why.COMPILED_ONLY: N_("compiled, not run: {memory}"),
    Why.NEEDS_NO_RUN: N_("needs no run: {why}"),
    Why.COMPILING_SAYS: N_("compiling says: {why}"),
    # rotations: what happened in one
    Why.NO_JOURNAL: N_(
        "there is no journal of the worker that rotates programs: the trainer's Python did not "
        "load it, or its file could not be written or read"
    ),
    Why.STEP_NOT_FOUND: N_("the program of the step was not found{said}"),
    Why.PROGRAM_REFUSED: N_("{program} is left out, the compiler refuses it: {said}"),
    Why.PROGRAM_TOO_LARGE: N_("{program} is left out, it needs {bytes:size} of a device"),
    Why.DIED_COMPILING: N_("it ended while it compiled {program}, and goes on without it"),
    Why.DIED_IN_TURN: N_("it ended in the turn of {program}, and goes on without it"),
    # rotations: why a profile stays a job of its own
    Why.STAYS_FOR_KEY: N_("the trainer reads {names:, } before it compiles"),
    Why.STAYS_FOR_VARIABLE: N_("a library reads {names:, } when it starts"),
    Why.STAYS_FOR_MESSAGE: N_("{names:, } has several fields, and no option sets those"),
    Why.STAYS_FOR_START: N_("programs of one process share what {names:, } sets"),
    Why.STAYS_FOR_EDIT: N_("{names:, } edits a list, and an option of a compilation replaces it"),
    # what all studies share
    Why.NO_SCORE: N_("no score"),
    Why.SCORE_NOT_FINITE: N_("its score is not finite"),
    Why.NOT_YET_MEASURED: N_("not measured yet"),
    Why.UNMEASURED: N_("it could not be measured: {why}"),
    Why.CANNOT_RUN: N_("it cannot run"),
    Why.HANG: N_("hang"),
    Why.CLASS: N_("{cls}"),
    Why.RUNS_LOST: N_("{lost} of {runs} runs lost"),
    Why.RUNS_LOST_TO: N_("{lost} of {runs} runs lost: {to:, }"),
    Why.SURVIVORS: N_(
        "{runs}, {baselines_lost} of {baselines} of the baselines: those that ended may be the "
        "fast ones"
    ),
    Why.STRAGGLERS: N_(
        "{slow} of its {steps} steps straggle against {baselines_slow} of {baselines_steps} of "
        "the baselines (p = {p:.3f}); with them the change is {change:percent or unknown}"
    ),
    Why.NO_SCORED_BLOCK: N_("no block holds a scored baseline and another scored arm"),
    Why.FLAGGED: N_("{flag} in {count} of {trials} trials"),
    Why.THE_REFERENCE: N_("the reference"),
    Why.STEADY_LATER: N_(
        "its steps become steady later than the baseline's ({excess:percent} in the first half "
        "of the window): the change is understated; run more steps"
    ),
    Why.STEADY_EARLIER: N_(
        "its steps become steady earlier than the baseline's ({excess:percent} in the first "
        "half of the window): the change is overstated; run more steps"
    ),
    # verdicts and notes of a tuning sweep
    Why.NOISE_SEEN: N_("the job noise of {sigma:fine} that the screen shows"),
    Why.NOISE_KNOWN: N_("the known job noise of {sigma:fine}"),
    Why.NOISE_ASSUMED: N_(
        "an assumed job noise of {sigma:fine} (this cell was not calibrated: `xlatune "
        "calibrate SWEEP_FILE`)"
    ),
    Why.NO_BASELINE_BESIDE: N_(
        "no baseline of this wave and epoch has a score, so there is no delta"
    ),
    Why.MEASURED_ONCE: N_(
        "measured once: the delta ranks and proves nothing, for the best of many single runs "
        "looks better than it is"
    ),
    Why.SCREENED_ONLY: N_("measured in the screen only: the delta ranks and proves nothing"),
    Why.LIKELY_SLOWER: N_(
        "very likely slower ({runs:+run}): more than three standard deviations below"
    ),
    Why.RANKED_IN_TURNS: N_(
        "ranked in rotations: a program may be another one as it is deployed, so that turns prove "
        "nothing"
    ),
    Why.FROM_ROTATIONS: N_("against the baseline's turns in the same rotations"),
    Why.FROM_SCREEN_LINE: N_("against the line through the screen's baselines"),
    Why.FROM_SCREEN_AND_BLOCKS: N_("against the screen's baselines and those beside it in blocks"),
    Why.FINALIST_SO_FAR: N_("a finalist: {done} of {total} confirming trials are over"),
    Why.RANKS_ONCE: N_("measured once: ranks only"),
    Why.RANKS_TWICE: N_("measured twice: ranks only"),
    Why.RANKS_TIMES: N_("measured {times} times: ranks only"),
    Why.NOT_AN_ARM: N_("it is not among the arms of the blocks"),
    Why.ELSE: N_("else {reason}"),
    Why.WITH_SPARE_BLOCKS: N_("{method}; its figures with {blocks:+spare block}"),
    Why.FASTER: N_("faster: {low:percent} to {high:percent} (95 %)"),
    Why.SLOWER: N_("slower: {low:percent} to {high:percent} (95 %)"),
    Why.NO_DIFFERENCE: N_("no relevant difference: {low:percent} to {high:percent} (90 %)"),
    Why.CANNOT_TELL: N_(
        "cannot tell: {low:percent} to {high:percent} (95 %); a change of {mde80:percent} would "
        "be found with 80 % power"
    ),
    Why.AA_TRIAL: N_("same effective flags and environment as {owner}: an A/A trial, no candidate"),
    Why.REPEAT: N_("same effective flags and environment as {owner}: a repeat of it"),
    Why.PLAN_FINDS: N_(
        "with {noise} this plan ({jobs} jobs) finds a profile that gains {start:percent} with "
        "80 % power, and among the finalists one that gains {finalist:percent}"
    ),
    Why.STOP_RULE: N_(
        "{arm} gains {change:percent} and its lower bound is above {excluded:percent}: you may "
        "stop here"
    ),
    Why.AA_CONTROL: N_(
        "A/A control: the baseline against itself is between {low:percent} and {high:percent}"
    ),
    Why.BOUNDED: N_(
        "no tested setting gains more than {bound:percent} (95 %), which is below "
        "{limit:percent}, the aim of a sweep without a winner"
    ),
    Why.BOUND_REACHES: N_(
        "no tested setting gains more than {bound:percent} (95 %): the interval of {arm} "
        "reaches so far"
    ),
    Why.BOUND_REACHES_ONCE: N_(
        "no tested setting gains more than {bound:percent} (95 %): the interval of {arm}, which "
        "was screened once, reaches so far"
    ),
    Why.NOT_BOUNDED: N_("{arms:, } may gain more: nothing shows that the settings were in effect"),
    Why.SPARE_BLOCKS: N_(
        "{blocks:+spare block} followed those that decide: they count in M and in the figures "
        "of the profiles that ran in them, and decide no verdict"
    ),
    Why.NOTHING_BOUNDED: N_("{arm} has no score and may gain anything: measure it again"),
    Why.SINGLE_BASELINE: N_(
        "the screen has a single baseline: drift and noise cannot be told apart"
    ),
    Why.NEITHER_SELECTED: N_("{profiles} declared profiles are neither selected nor measured"),
    Why.TIE: N_(
        "a tie: {first} and {second} are both faster, and which of the two is faster cannot be "
        "told ({low:percent} to {high:percent}, 95 %)"
    ),
    Why.MACHINE_TOO_NOISY: N_(
        "this machine is too noisy: settings that do nothing moved by up to {moved:size}"
    ),
    Why.UNLIKE_WARMUPS: N_(
        "profiles differ in warm-up from the baseline: {arms:, }; the window of all trials "
        "starts at step {step}"
    ),
    Why.CAME_TOO_LATE: N_(
        "{arms:, } would be a finalist by now, but the finalists were fixed when the "
        "confirmation began, and another one would raise the error rate: confirm it in a sweep "
        "of its own (another name=, or --xlatune-fresh)"
    ),
    Why.EPOCHS: N_(
        "the nodes or the software on them changed: {epochs} epochs, and trials of two epochs "
        "are not compared"
    ),
    Why.UNDECLARED: N_("no longer declared, ignored: {arms:, }"),
    Why.SETTINGS_CHANGED: N_(
        "settings changed since they were measured, old trials ignored: {arms:, }"
    ),
    Why.FOREIGN_TRIALS: N_("{trials} trials of another cell, protocol or study were ignored"),
    # derived waves: what fills their slots, and what was passed over
    Why.SEVERAL: N_("{reasons:; }"),
    Why.NO_AIM: N_("an evidence run does not show what it acts on"),
    Why.FILLS_SINGLES_BY_EVIDENCE: N_(
        "single settings out of {candidates}, by an evidence run of the baseline"
    ),
    Why.FILLS_SINGLES: N_("single settings out of {candidates}, in declared order"),
    Why.FILLS_STACKS: N_("stacks of {sizes: or } profiles that led the waves before"),
    Why.FILLS_VALUES: N_("values beside the leaders' of {names:, }"),
    Why.FILLS_VALUES_OF_MANY: N_("values beside the leaders' of {settings} settings"),
    Why.FILLS_CROSSED: N_("the best flags and variables with the best shape"),
    Why.FILLS_SEARCH: N_(
        "candidates out of {points}, one or two of {settings:+flag}, in {rounds:+rotation}"
    ),
    Why.SEARCH_SO_FAR: N_(
        "{wave}: the search measured {tried} of {points} candidates; the best of them go on to "
        "fresh blocks of ordinary jobs, which alone decide"
    ),
    Why.NUMBERED: N_("{number} {name}"),
    Why.NAMED: N_("{names:first 6}"),
    Why.NAMED_FOR: N_("{names:first 6} ({why})"),
    Why.CHOSEN: N_("{wave}: {by}: {groups:; }"),
    Why.NONE_CHOSEN: N_("{wave}: {by}"),
    Why.CUT_AT: N_("{wave}: cut at {slots:+slot}: {groups:; }"),
    Why.LEFT_OUT: N_("{wave}: left out: {groups:; }"),
    Why.PROGRAM_HAS_NO: N_("the program has no {parts: and no }"),
    Why.NO_TRACE_OF: N_("{parts: and }: no trace tells the time that it costs"),
    Why.NO_PGLE: N_(
        "{wave}: no pgle-profile: the trace of {trial} names no operation of the program. A "
        "deployed --xla_gpu_enable_command_buffer= (empty) makes it do so"
    ),
    Why.SHARE_OF_STEP: N_("{parts: and }, {share:size} of a step"),
    Why.SHARE_OF_STEP_ALONE: N_("{parts: and } alone, {share:size} of a step"),
    Why.DECLARED_ORDER: N_("candidates in declared order"),
    Why.WITHOUT_EVIDENCE: N_("candidates in declared order, for the baseline has no evidence"),
    Why.NOTHING_OF_STEP: N_("it left nothing that says where the time of a step goes"),
    Why.EVIDENCE_SAYS_NOTHING: N_(
        "candidates in declared order, for the evidence run {trial}: {why}"
    ),
    Why.BY_EVIDENCE: N_("candidates by the evidence of {trial}"),
    Why.DECLARED_ITSELF: N_("the sweep declares it itself"),
    Why.SAME_SETTINGS: N_("the same settings as {profile}"),
    Why.GAINS_NOTHING: N_("confirmed to gain nothing: {arm}"),
    Why.FELL_SHORT: N_("{wave}: {arms:, } fell short of its parts: no further stack holds all"),
    Why.PAIR_UNDECIDED: N_(
        "whether the deployed flags help is not decided: {arm} was only screened. {jobs:+more "
        "job}, one in each block, would decide it: --xlatune-pair on, for this sweep"
    ),
    Why.PAIR_NEEDS_SWEEP: N_(
        "whether the deployed flags help is not decided: {arm} was only screened. {jobs:+more "
        "job}, one in each block, would decide it: --xlatune-pair on, for a sweep of its own "
        "(--xlatune-fresh)"
    ),
    # what a plan says of a tuning sweep
    Why.RULE_SLOTS: N_("{wave}: {slots:+slot} for {fills}; {known}"),
    Why.SEARCHES: N_(
        "{wave} searches: {slots} {fills}; each rotation but the first has those of which the "
        "results before promise most"
    ),
    Why.AND_DERIVED: N_(", and those of derived waves"),
    Why.TRIALS_OF_PLAN: N_("{trials} trials{more}"),
    Why.FINDS_AT: N_("{start:size} ({finalist:size}) at {sigma:size} job noise"),
    Why.JOBS_OF_BUDGET: N_("{jobs} jobs of {budget}"),
    Why.JOBS_UP_TO: N_(
        "{jobs} jobs, up to {most} where nothing is faster: further blocks lower the largest "
        "gain that is still possible"
    ),
    Why.PLAN: N_("{screened} trials of the screen{more}, then {blocks}: {jobs}"),
    Why.PLAN_OF_BLOCKS: N_("behind the rotations {blocks}: {jobs}"),
    Why.SMALLEST: N_(
        "the smallest gain that this sweep finds with 80 % power (in brackets: that of a "
        "finalist): {seen:, }"
    ),
    Why.SMALLEST_ASSUMED: N_(
        "the smallest gain that this sweep finds with 80 % power (in brackets: that of a "
        "finalist): {seen:, }; {sigma:size} is assumed, because this cell was not calibrated: "
        "`xlatune calibrate SWEEP_FILE`"
    ),
    Why.ACTS_ON: N_(
        "derived profiles must act on the collectives of the baseline's program: {collectives:, }"
    ),
    Why.ACTS_ON_NONE: N_(
        "derived profiles must act on the collectives of the baseline's program: none"
    ),
    Why.EVIDENCE_COMES: N_(
        "an evidence run of the baseline will show which derived settings do nothing to its program"
    ),
    Why.EVIDENCE_WOULD_SHOW: N_(
        "an evidence run of the baseline will show which derived settings do nothing to its "
        "program: `xlatune evidence SWEEP_FILE`"
    ),
    Why.RESULTS_DECIDE: N_("their results decide which profiles"),
    Why.NEXT_TAKES_SLOT: N_(
        "a profile that is left out, or needs no run, gives its slot to the next"
    ),
    Why.UNTIL_EVIDENCE: N_("until that evidence run, one more job, they are in declared order"),
    Why.SLOTS_BESIDE: N_(
        "{slots} slots of {nodes:+node} side by side{used}: {screen} rounds of the screen and "
        "{blocks} of the blocks, so that {rounds} trials follow one another and not {jobs}"
    ),
    Why.SCREEN_USES: N_(" (the screen uses {slots} of them)"),
    Why.MORE_JOBS_FIND: N_(
        "with {jobs} jobs (--xlatune-budget {jobs}) the best {again} of the screen run a "
        "second time, and the sweep finds smaller effects"
    ),
    Why.SLOT_STAYS_SLOWER: N_(
        "slot {slot} ({nodes}) is slower than the others by {loss:size}, more than noise "
        "explains; no comparison rests on it"
    ),
    Why.SLOT_DEAD: N_("slot {slot} ({nodes}) takes no trial: {why}{block}"),
    Why.BLOCK_WENT_TOO: N_(", and {trials:+trial} of its block went with it"),
    Why.BLOCK_FOR_WORST: N_(
        "block {block} is added: {arms:first 4} ran once, far below the baseline"
    ),
    Why.BLOCK_FOR_BOUND: N_(
        "block {block} is added: nothing is faster, and what {arms:first 4} may gain or lose "
        "is not narrow yet"
    ),
    # why a study made a profile
    Why.LEADER: N_("{profile} {change:percent}"),
    Why.STACKED: N_("stacked, for the screen showed {leaders:, }"),
    Why.BESIDE_LEADER: N_("beside {setting} of {leader} in the screen"),
    Why.SEARCHED: N_("found by the search of {wave}"),
    Why.CROSSED: N_("flags and shape together: {leaders: and } in the screen"),
    Why.PLACED_BY_EVIDENCE: N_("number {number} of {of} by the evidence ({why})"),
    Why.AA_ALIAS: N_("the baseline under an alias: an A/A control"),
    # gates
    Why.TOO_EARLY: N_("cannot tell yet: {over} of {trials} trials are over"),
    Why.CANNOT_TELL_FOR: N_("cannot tell: {why}"),
    Why.NOT_INFERIOR: N_("non-inferiority at {margin:size}; {method}"),
    Why.NOT_INFERIOR_TO_STORED: N_(
        "non-inferiority at {margin:size}; {method}; stored baseline, a drift since then is "
        "not excluded"
    ),
    Why.GATE_FASTER: N_("no regression: faster by at least {least:percent}"),
    Why.GATE_HOLDS: N_("no regression: {worst:percent} at worst, the margin is {margin:size}"),
    Why.GATE_FAILS: N_(
        "regression: {best:percent} at best, {worst:percent} at worst, the margin is {margin:size}"
    ),
    Why.GATE_OPEN: N_(
        "cannot tell: {worst:percent} at worst, {best:percent} at best, the margin is "
        "{margin:size}; {enough}"
    ),
    Why.TOO_CLOSE: N_(
        "at a job noise of {sigma:fine} no reasonable number of trials would decide it: the "
        "change is too close to the margin"
    ),
    Why.BLOCKS_WOULD_DECIDE: N_(
        "at the noise seen ({sigma:fine}) {blocks} blocks would decide it with 80 % power: "
        "{trials} trials, {more} more"
    ),
    Why.NO_FINITE_SCORE: N_("no finite score"),
    Why.TRIALS_MISSING: N_("{absent} of {trials} trials have no score ({why}); run it again"),
    Why.NOTHING_SHOWS: N_("nothing shows that {names:, } was in effect ({effect})"),
    Why.ABOVE_FLOOR: N_("above the floor: {tgs:.1f} TGS, the floor is {floor:g}"),
    Why.BELOW_FLOOR: N_("regression: below the floor: {tgs:.1f} TGS, the floor is {floor:g}"),
    Why.FLOOR_OPEN: N_(
        "cannot tell whether it is above the floor: {tgs:.1f} TGS, the floor is {floor:g}"
    ),
    Why.GATE_LAYOUT: N_(
        "a gate at a margin of {margin:size}: {trials} trials of each candidate in randomised "
        "blocks, baselines: {baselines} in each block; an equal candidate passes with 80 % "
        "power up to a job noise of {noise:fine}"
    ),
    Why.GATE_LAYOUT_STORED: N_(
        "a gate at a margin of {margin:size}: {trials} trials of each candidate in randomised "
        "blocks, baselines: {baselines} stored; an equal candidate passes with 80 % power up "
        "to a job noise of {noise:fine}"
    ),
    Why.BASELINE_STORED: N_(
        "the baseline was not measured beside the candidates but taken from {source} of "
        "{written}: a drift of the cell since then cannot be told from a change"
    ),
    Why.GATE_PLAN: N_(
        "{trials} trials: {blocks} blocks of {candidates} candidates + {baselines} baselines"
    ),
    Why.GATE_SEES: N_(
        "an equal candidate passes at a margin of {margin:size} with 80 % power up to a job "
        "noise of {noise:fine}"
    ),
    # whether a gain carries to another cell
    # calibrations, evidence runs, imported tables
    Why.TRIALS_DEPLOYED: N_("{trials:+trial} of the cell as deployed"),
    Why.TRIALS_ON_SLOTS: N_(
        "{trials:+trial} ({alone} alone, the others in {rounds} rounds of all slots) of the "
        "cell as deployed"
    ),
    Why.FEW_ON_SLOTS: N_(
        "cannot tell what slots differ by: a slot has no score, or too few trials have"
    ),
    Why.EVIDENCE_PLAN: N_("{runs} run with profiler and dump, without a score"),
    Why.EVIDENCE_MEASURES_NOTHING: N_("an evidence run measures nothing"),
    Why.TABLE_IS_OVER: N_("nothing is run: the jobs of the table are over"),
    Why.OF_CONTROL_GROUP: N_("does what the baseline does: part of the control group"),
    Why.NOTHING_RUN_TWICE: N_("nothing in the table was run twice: its noise is not known"),
    Why.INSIDE_NOISE: N_("inside the noise: two equal settings differ by up to {one:size}"),
    Why.INSIDE_NOISE_OF_ALL: N_(
        "outside the noise of one comparison ({one:size}), inside that of all {profiles} "
        "({every:size})"
    ),
    Why.OUTSIDE_NOISE: N_("outside the noise of all comparisons ({every:size}): worth a sweep"),
    Why.ORDER_NOT_RANDOM: N_(
        "imported: the order of the jobs was not randomised; single runs rank, no more"
    ),
    Why.NOISE_OF_EQUAL: N_(
        "noise from runs of equal settings: {sigma:fine} between jobs, {df:+degree} of freedom"
    ),
    Why.CONTROL_BY_CATALOG: N_("{profile} is a control, for the catalog says: {why}"),
    Why.AGAINST_CONTROL_GROUP: N_(
        "changes are against the mean of the {runs} runs that do what the baseline does; the "
        "baseline's own runs are {shift:percent} from it"
    ),
    Why.ONE_BASELINE_RUN: N_(
        "the baseline ran once: its error is part of every change, the same for all"
    ),
    Why.SETTINGS_UNTOLD: N_(
        "the table does not tell the settings of {profiles:, }: each is a profile of its own; "
        "name the ones that do nothing with --no-op"
    ),
    # nodes
    Why.COUNTED: N_("{number} {word}"),
    Why.NODES_COUNTED: N_("{nodes:+node}: {counts:, }"),
    Why.NODES_OPEN: N_("{nodes:+node}: no verdict"),
    Why.RECOMMENDED: N_("recommended: {nodes:,}"),
    Why.NONE_RECOMMENDED: N_("recommended: none"),
    Why.NO_NODE_GOOD: N_("no node of {nodes} can be recommended"),
    Why.ASKED_ELSEWHERE: N_("the command ran on {node}"),
    Why.MEDIAN_OF_FIRST: N_("the median of the first runs"),
    Why.ITS_FIRST_RUN: N_("its first run"),
    Why.ITS_FIRST_RUN_AGAIN: N_("its first run; it is run again"),
    Why.ALL_NODES_FAIL: N_(
        "more nodes failed than were measured: look at the load, and at what the nodes share; "
        "no node is accused"
    ),
    Why.OWN_LOG: N_("its own log: {lines:lines 3}"),
    Why.OWN_LOG_SAYS: N_("its own log says: {lines:lines 3}"),
    Why.OWN_RUNS_SCATTER: N_(
        "its own runs scatter: {own:fine} (one standard deviation of its fresh runs), all "
        "others {others:fine}"
    ),
    Why.RUN_AGAIN: N_("not measured: {why}; run it again"),
    Why.RUNS_FAILED: N_("{failed} of {runs:+run} failed: {why}"),
    Why.NODE_OTHER_LOSS: N_(
        "its loss is {loss:.6g}, that of the median node {median:.6g}, more than "
        "{tolerance:.0%} apart: it computes something else"
    ),
    Why.LOW_NOT_AGAIN: N_(
        "low in its first run, and not run again: {low} of {nodes:+node} are low, at most "
        "{most} are run again"
    ),
    Why.FIRST_RUNS_SPREAD: N_("first runs of all nodes, noise from their spread"),
    Why.NOT_LOW: N_("not low in its first run"),
    Why.LOW_NO_BUDGET: N_(
        "low in its first run; the budget of {budget} jobs leaves none to run it again, ask "
        "for {ask}"
    ),
    Why.NO_CONTROL_BESIDE: N_("no control beside it has a score: more nodes are low than are not"),
    Why.ROUNDS_BESIDE: N_("{rounds} rounds beside {controls:+control}, {rule}"),
    Why.BY_DUNNETT: N_("Dunnett"),
    Why.BY_BONFERRONI: N_("Bonferroni"),
    Why.LOSS_OF_SUSPECT: N_("a loss of {loss:size} or more, 95 % over all suspects"),
    Why.INTERVAL_HOLDS_BOTH: N_("its interval holds losses of {loss:size} and of {worse:size}"),
    Why.LOSS_OPEN: N_("a loss of {loss:size} is neither shown nor excluded"),
    Why.LOW_ONCE_ONLY: N_("low in its first run, not when run again beside controls"),
    Why.NODE_BELOW_FLOOR: N_(
        "below the floor: {tgs:.1f} TGS in {runs:+fresh run}, the floor is {floor:g}"
    ),
    Why.NODE_FLOOR_OPEN: N_(
        "cannot tell whether it is above the floor: {tgs:.1f} TGS in {runs:+fresh run}, the "
        "floor is {floor:g}"
    ),
    Why.LIKE_THE_OTHERS: N_(
        "like the other nodes, but their median is {shift:percent} from the reference of "
        "{reference:g} TGS: all are slow, or the load has changed"
    ),
    Why.OWN_LOG_UNKNOWN: N_(
        "the own log of {nodes:lines 3} is not known: {why}; its verdict rests on its runs alone"
    ),
    Why.NODES_DIFFER: N_(
        "first runs of nodes differ by {sigma:fine} (one standard deviation, slow nodes hardly "
        "counted); nodes differ for good by 0.2 to 0.5 %, which is no fault"
    ),
    Why.MEDIAN_NOT_TRUSTED: N_(
        "{low} of {nodes:+node} are low: the median is not to be trusted. Say what a healthy "
        "node does: Nodes(reference_tgs=...), from an earlier check"
    ),
    Why.BUDGET_ALLOWS_ROUNDS: N_(
        "the budget of {budget} jobs allows {allowed} of {rounds} rounds; {most} jobs are the "
        "most that all take"
    ),
    Why.MEDIAN_SHIFT: N_(
        "the median node is {shift:percent} from the reference of {reference:g} TGS"
    ),
    Why.NO_REFERENCE_OF_NODES: N_(
        "nodes are held against their own median: where most of them are slow alike, only a "
        "reference shows it"
    ),
    Why.ONE_JOB_A_NODE: N_("{nodes} jobs, one on each node, all at once"),
    Why.ROUNDS_OF_SUSPECTS: N_(
        "then {rounds} rounds of the suspects (at most {suspects}) and {controls} controls: at "
        "most {jobs} jobs in {waves} waves"
    ),
    Why.FIRST_RUN_OF_NODES: N_("first run of {nodes} nodes"),
    Why.ROUND_OF_SUSPECTS: N_("round {round} of {rounds}, suspects and controls"),
    # the network between nodes
    Why.WORD_FOR: N_("{word}: {why}"),
    Why.LOAD_BANDWIDTH: N_("a bandwidth test: bus bandwidth of one size, in GB/s"),
    Why.LOAD_TRAINING: N_("training, steps {first} to {last} of {steps}"),
    Why.PAIRS_FAILED: N_("{pairs:+pair} with it failed, each with another partner: {why}"),
    Why.SINGLE_RUNS_OF_PAIRS: N_("single runs of its pairs"),
    Why.FEW_PAIRS_SCORED: N_("too few of its pairs have a score"),
    Why.SLOW_WITH_ONE: N_("slow with one partner alone: {pair:-}"),
    Why.NOT_LOW_IN_PAIRS: N_("not low over its pairs"),
    Why.LOW_PAIRS_NO_BUDGET: N_(
        "low over its pairs; the budget of {budget} jobs leaves none to run it again, ask for {ask}"
    ),
    Why.FRESH_PAIRS_MISSING: N_(
        "low over its pairs, and fresh runs with good partners beside a good pair are missing: "
        "too many nodes are low at once, or those runs failed"
    ),
    Why.FRESH_PAIRS: N_("{pairs:+fresh pair} with good partners beside good pairs"),
    Why.LOW_PAIRS_OPEN: N_(
        "low over its pairs, and a loss is neither shown nor excluded by fresh ones"
    ),
    Why.LOW_PAIRS_NOT_AGAIN: N_("low over its pairs, not in fresh ones"),
    Why.PAIR_DEAD: N_("{pair:-} cannot communicate with each other, and both can with others"),
    Why.NODE_SLOW: N_("NODE {node}, {loss}"),
    Why.NODE_UNHEALTHY: N_("UNHEALTHY {node}"),
    Why.CANNOT_COMMUNICATE: N_("it cannot communicate; the others were judged without it"),
    Why.NOTHING_SLOW: N_("no node and no link is shown to be slow"),
    Why.ALL_PAIRS_FAIL: N_(
        "more pairs failed than were measured: look at the load, and at what all nodes share; "
        "no node is accused"
    ),
    Why.LOOK_AT_CLUSTER: N_(
        "{least} nodes or more cannot communicate: {nodes:, }. Look at the cluster first"
    ),
    Why.LINK_SLOW: N_("slower than both of its nodes are with other partners, {loss}"),
    Why.RACKS_SLOW: N_(
        "{pair:-} and other pairs of the same two racks are slower than both of its nodes are "
        "with other partners, {loss}"
    ),
    Why.SLOW_NO_BUDGET: N_(
        "{nodes:, } look slow, and the budget of {budget} jobs leaves none to run them again; "
        "ask for {ask}"
    ),
    Why.LOSS_OF_OPEN: N_("{names:, }: a loss is neither shown nor excluded"),
    Why.LINK_WITHOUT_SCORE: N_("{pair:-} looks slow, and its fresh runs have no score"),
    Why.LINKS_UNKNOWN: N_(
        "{covered} of {pairs} pairs have a score; of the other links nothing is known"
    ),
    Why.NOT_MEASURED: N_("not measured"),
    Why.LOSS_AT_LEAST: N_("{change:percent}, a loss of {loss:size} or more"),
    Why.LOAD_NOTED: N_("the load: {load}"),
    Why.PAIRS_DIFFER: N_(
        "pairs of one round differ by {sigma:fine} (one standard deviation, slow pairs hardly "
        "counted)"
    ),
    Why.LINKS_UNSAID: N_(
        "{covered} of {pairs} pairs have a score; of the other links nothing is said"
    ),
    Why.ENDS_WITH_ACCUSED: N_(
        "the check ends with the accused node: its repair comes first. {covered} of {pairs} "
        "pairs have a score; of the other links nothing is said"
    ),
    Why.ONE_PAIR_OF_RACKS: N_(
        "between two racks one pair stands for all: a fault of a single cable that only other "
        "pairs use is not seen"
    ),
    Why.CROSS_CHECK: N_(
        "run the check of nodes too, which runs each node alone: a node that is healthy alone "
        "and slow in pairs has a faulty network card or link; one that is slow alone has "
        "another fault"
    ),
    Why.SLOWEST_ONLY: N_(
        "only the slowest link is confirmed; run the check again after its repair, with another key"
    ),
    Why.PAIRS_EXCUSED: N_(
        "{pairs:+pair} without a score: left out by the budget of {budget} jobs, cancelled, or "
        "lost by the scheduler"
    ),
    Why.ACCUSATION_RESTS_ON: N_(
        "an accusation rests on {runs} fresh runs beside others, one-sided {level:share1}, and "
        "a loss of 1 % at least"
    ),
    Why.JOBS_OF_PAIRS: N_(
        "{jobs} jobs of two nodes in {rounds} rounds, each node once a round; after {first} of "
        "them a node that is slow with all its partners is found"
    ),
    Why.FRESH_RUNS_OF_SLOW: N_(
        "then fresh runs of what looks slow: at most {jobs} jobs in {waves} waves"
    ),
    Why.LOAD_IS: N_("the load is {load}"),
    Why.PAIRS_OF_RACKS: N_("{racks} racks: every pair inside each, one pair between each two"),
    Why.FEW_RACKS: N_("fewer than {least} racks hold these nodes: every pair is run"),
    Why.MANY_PAIRS: N_(
        "{nodes} nodes have {pairs} pairs: Network(racks=...) needs fewer, a bandwidth test "
        "(metric='busbw') takes seconds a job"
    ),
    Why.BUDGET_NOT_ALL_PAIRS: N_(
        "the budget of {budget} jobs does not cover every pair: links cannot all be judged; "
        "{ask} jobs are the most that it takes"
    ),
    Why.SLOW_NODES_AGAIN: N_("slow nodes again, wave {wave}"),
    Why.SLOW_PAIRS_AGAIN: N_("slow pairs again, wave {wave}"),
    Why.LINK_AGAIN: N_("the slowest pair again, wave {wave}"),
    Why.ROUND_OF_PAIRS: N_("round {round} of about {rounds}, {pairs:+pair}"),
    Why.NETWORK_FOUND: N_("{nodes:+node}, {covered} of {pairs} pairs: {answer}"),
    Why.NO_NODE_COSTS: N_("no node costs {loss:size} or more{links} (95 %)"),
    Why.NO_OTHER_NODE_COSTS: N_("no other node costs {loss:size} or more{links} (95 %)"),
    Why.NO_LINK_COSTS: N_(", no link {loss:size}"),
    # batch sizes and other values
    Why.THE_BEST: N_("the best"),
    Why.THE_NEXT: N_("the next, {value}"),
    Why.SAME_AS_IT: N_("cannot be told from it: {values:, }"),
    Why.CEILING: N_("ceiling: {ran} ran, {unfit} did not fit"),
    Why.CEILING_BELOW: N_("ceiling: none ran, {unfit} did not fit"),
    Why.CEILING_ABOVE: N_("ceiling: {ran} ran, and no larger one may be tried"),
    Why.CEILINGS: N_("largest size that ran, of the largest that compiles, by {key}: {each:, }"),
    Why.CEILING_WITH: N_("{second} {ran} of {most}"),
    Why.NO_VALUE_FOR: N_("no value of {key} is recommended: {why}"),
    Why.VALUES_NOT_RANKED: N_("{key} changes the computation: its values are not ranked by speed"),
    Why.NO_VALUE_FITS: N_("no value of {key} fits"),
    Why.NO_VALUE_MEASURED: N_("no value of {key} is recommended: none was measured"),
    Why.SINGLE_RUNS: N_("single runs"),
    Why.NEXT_IS: N_(
        "; the next is {value}, [{low:points}, {high:points}] % against it (95 %, {how})"
    ),
    Why.NEXT_IS_ABOUT: N_(
        "; the next is {value}, {change:percent} ({how}, too few for an interval)"
    ),
    Why.WITH_TGS: N_(" with {tgs:.1f} TGS"),
    Why.SIZE_RECOMMENDED: N_("recommended: {setting}{speed}{next}"),
    Why.STOOD_STILL: N_("it stood still; it is run again"),
    Why.NOT_RANKED_FOR: N_("{why}: it computes something else, and is not ranked"),
    Why.FINDING_ONLY: N_("{key} changes the computation: a finding, not a ranking"),
    Why.SO_FAR: N_("so far"),
    Why.BLOCKS_BONFERRONI: N_("{blocks:+block}, Bonferroni"),
    Why.DIFFERENCE_EXCLUDED: N_("a difference of {difference:size} is excluded"),
    Why.WITHIN_NOISE: N_("within {cut:size} or three standard deviations of it"),
    Why.LEADS_ALONE: N_("it leads by more than three standard deviations, so no block was run"),
    Why.SMALLER_RECOMMENDED: N_("a smaller size cannot be told from it, and is recommended"),
    Why.UNFIT_HEADROOM: N_(
        "memory outside XLA's pool: at this memory fraction RCCL or NCCL gets too little; a "
        "smaller fraction leaves them more"
    ),
    Why.UNFIT_HUNG: N_(
        "it stood still between Memstats and the first step, twice, and a smaller size did not"
    ),
    Why.UNFIT_KILLED: N_("it was killed twice by SIGKILL, as the kernel does for want of memory"),
    Why.UNFIT_HOST: N_(
        "the host has too little memory: the kernel, the scheduler or the allocator refused more"
    ),
    Why.CLASS_MEANS: N_("{cls:meaning}"),
    Why.WITH_DETAIL: N_("{why} ({detail})"),
    Why.TOO_NEAR_CEILING: N_(
        "it ran, but {smaller} did not fit: it is too near to the ceiling to be relied on"
    ),
    Why.RAN_AT_OTHER_TIMES: N_(
        "it failed once and ran at other times: it is too near to the ceiling to be relied on"
    ),
    Why.LARGER_THAN_UNFIT: N_("larger than {unfit}, which did not fit"),
    Why.ABOVE_COMPILED: N_("compiled memory says that no size above {limit:g} fits"),
    Why.BUDGET_SPENT: N_("the budget of {budget} jobs left no job"),
    Why.NO_COMPILER_ASKED: N_(
        "no compiler was asked, so jobs that did not fit found the ceiling: "
        "Sweep(compile_check=...) asks one first"
    ),
    Why.NO_COMPILED_MEMORY: N_("no compiled memory, so jobs looked for the ceiling: {why}"),
    Why.SIZE_TAKES: N_("{value}: {needed_bytes:gib or more than there is}"),
    Why.MEMORY_DOES_NOT_GROW: N_("it does not grow with {key}, so it says nothing of the ceiling"),
    Why.LARGEST_FITS: N_("the largest that may be tried fits"),
    Why.NONE_FITS: N_("by that none fits"),
    Why.NONE_ABOVE_RUN: N_("no size above {top} was run"),
    Why.COMPILED_MEMORY: N_(
        "compiled memory of one device in GiB, of {limit_bytes:gib} GiB, by {by}: {sizes:, }; "
        "{follows}"
    ),
    Why.STOPPED: N_("stopped: {why}"),
    Why.BUDGET_ENDED_SEARCH: N_(
        "the budget of {budget} jobs ended the search: a larger one may find better"
    ),
    Why.BUDGET_ALLOWS_BLOCKS: N_(
        "the budget allows {allowed} of {blocks} blocks, of {width} of {leading:+leading size}"
    ),
    Why.NOISE_MEASURED: N_("the noise between jobs was not known before; blocks measured it"),
    Why.NOISE_UNKNOWN: N_(
        "the noise between jobs is not known: give BatchSize(sigma=...) from a calibration"
    ),
    Why.NOISE_OF_A_JOB: N_("noise of one job's score: {sigma:fine}"),
    Why.NO_SIZE_MENDS: N_("{cause}: {why}: no other size would mend it"),
    Why.ALL_SIZES_FAIL: N_(
        "the first {sizes} sizes all ended in {cause}: the configuration is wrong, not the size"
    ),
    Why.NO_BLOCK_WITH_BEST: N_("no block holds it and the best"),
    Why.VALUES_ONCE: N_("{values} values of {key}, each once"),
    Why.VALUES_UPWARDS: N_(
        "{values} values of {key}, each once, from the smallest up, until one does not fit"
    ),
    Why.SIZES_FROM: N_(
        "{key} from {start}, in steps of {step:g} between {least} and {most}: the ceiling "
        "first, then around the best; about 5 to 8 jobs"
    ),
    Why.WITH_EACH: N_(
        "with each of {values:, } of {key}, where compiled memory lets the pair fit: about 3 jobs "
        "more for each further value"
    ),
    Why.WITH_EACH_LISTED: N_(
        "with each of {values:, } of {key}: a job for each pair that compiled memory lets fit"
    ),
    Why.LENGTHS_DIFFER: N_(
        "{key} changes the tokens of a step: TGS is comparable, the loss of different lengths is "
        "not, and neither is what a model learns"
    ),
    Why.MEMORY_IS_SAME: N_(
        "compiled memory is the same with each value of {key}: does the program take it?"
    ),
    Why.MEMORY_OF_SOME: N_(
        "compiled memory is the same with {values:, } of {key}: is that one program?"
    ),
    Why.GIVEN_UP: N_(
        "with {values:, } of {key} the best first run was more than {cut:size} behind: no further "
        "size was tried"
    ),
    Why.PAIRS_NEED_MEMORY: N_(
        "pairs with {key} are chosen by compiled memory, and there is none: {why}"
    ),
    Why.COMPILER_FIRST: N_("first a compiler says which sizes fit: it costs no job"),
    Why.BLOCKS_OF_LEADING: N_(
        "then {blocks} complete blocks of the leading sizes, four at most: at most {budget} "
        "jobs in all"
    ),
    # commits
    Why.ARM: N_("{arm}"),
    Why.ITS_PARENT: N_("its parent"),
    Why.THE_FIRST_COMMIT: N_("the first commit"),
    Why.THE_COMMIT_BEFORE: N_("the commit before"),
    Why.SLIGHT_CHANGE: N_("shown, but below 1 %: the search does not follow a change that small"),
    Why.BY_CHANGE: N_(", {change:percent}"),
    Why.FIRST_BAD: N_("FIRST BAD {commit}{change}"),
    Why.FIRST_FASTER: N_("FIRST FASTER {commit}{change}"),
    Why.COMMITS_SKIPPED: N_("; not measured: {commits:, }"),
    Why.RANGE: N_("RANGE {first}..{last}{change} between the ends{skipped}"),
    Why.NO_LOSS_AMONG: N_(
        "NO CHANGE among {commits:+commit}: a loss of {excluded:size} or more is excluded (95 %)"
    ),
    Why.NO_GAIN_AMONG: N_(
        "NO CHANGE among {commits:+commit}: a gain of {excluded:size} or more is excluded (95 %)"
    ),
    Why.COMMITS_COUNTED: N_("{commits:+commit}: {counts:, }"),
    Why.COMMITS_OPEN: N_("{commits:+commit}: no verdict"),
    Why.SEARCH_NOT_OVER: N_("the search is not over"),
    Why.COMMIT_OTHER_LOSS: N_(
        "{commit} computes something else than {before}: its loss is {loss:.6g}, not "
        "{loss_before:.6g}"
    ),
    Why.FIRST_WITHOUT_SCORE: N_("the first commit {commit} has no score: {why}"),
    Why.LAST_WITHOUT_SCORE: N_("the last commit {commit} has no score: {why}"),
    Why.END_WITHOUT_SCORE: N_("an end has no score"),
    Why.NOT_MEASURED_FOR: N_("not measured: {why}"),
    Why.BESIDE_PARENT: N_(
        "beside its parent {parent} in {pairs} fresh pairs, noise pooled with the ends'"
    ),
    Why.BESIDE_FIRST: N_("beside the first commit in {pairs} alternating pairs"),
    Why.TO_HALVE_RANGE: N_("measured to halve the range"),
    Why.ENDS_DIFFER: N_(
        "the ends differ by {change:percent} in {pairs:+pair}; a run's noise is {sigma:fine}"
    ),
    Why.DIFFERENCE_IS: N_("the difference is {what}"),
    Why.RANGE_HALVED: N_("{runs:+run} halved the range, of at most {most}"),
    Why.NO_JOB_TO_CONFIRM: N_("the budget of {budget} jobs leaves none to confirm commit {commit}"),
    Why.LIKELIEST_NOT_SHOWN: N_(
        "commit {commit} was likeliest, and {pairs} fresh pairs with its parent do not show a "
        "change of 1 % or more"
    ),
    Why.LIKELIEST_NOT_SHOWN_BY: N_(
        "commit {commit} was likeliest, and {pairs} fresh pairs with its parent do not show a "
        "change of 1 % or more: {change:percent}"
    ),
    Why.BETWEEN_NOT_MEASURED: N_(
        "the commits between the two could not be measured: one of them made the change"
    ),
    Why.SEARCH_SPENT: N_("the runs that the search may take are spent"),
    Why.MORE_LIES_ELSEWHERE: N_(
        "the ends differ by more than this commit explains: about {rest:size} more lies "
        "elsewhere in the range; search the rest again without it"
    ),
    Why.SEVERAL_CHANGED_IT: N_(
        "the ends differ by more than this commit explains: about {rest:size} lies elsewhere, "
        "so several commits changed it"
    ),
    Why.PAIRS_OF_ENDS: N_(
        "{jobs} jobs: {pairs} alternating pairs of the first and the last of {commits:+commit}"
    ),
    Why.MORE_WHERE_OPEN: N_(
        "{jobs} more if these cannot tell; if they show no change, the search ends"
    ),
    Why.HALVES_THE_REST: N_(
        "then the commit that halves the rest, one job after the other on all nodes"
    ),
    Why.PAIRS_OF_LIKELIEST: N_(
        "then {pairs} fresh pairs of the likeliest and its parent: at most {most} jobs in all"
    ),
    Why.LOADS_ON_COMMITS: N_(
        "{jobs:+job} in {waves:+wave}: {loads:+load} on {commits:+commit}, those on disjoint "
        "nodes at the same time"
    ),
    Why.PAIRS_OF_SLOWER: N_(
        "then {pairs} fresh pairs of each that looks slower, {waves} waves where their nodes "
        "are disjoint: at most {most} jobs in all"
    ),
    Why.COMMIT_BREAKS: N_(
        "{commit} breaks {models:, }, which ran on the commit before: {runs:+further run} of "
        "it {runs:was|were} not submitted"
    ),
    Why.BREAKS_OTHERS: N_("not submitted: the commit breaks other models"),
    Why.IT_RUNS: N_("it runs"),
    Why.RUNS_FIRST_TIME: N_("it runs, and did on no commit before"),
    Why.UNLIKE_NO_BUDGET: N_(
        "{change:percent} in its first run; the budget of {budget} jobs leaves none to run it "
        "again beside the commit before"
    ),
    Why.FIRST_RUNS_DIFFERENCES: N_("first runs, noise from the spread of all differences"),
    Why.NO_LOSS_AT_FIRST: N_("no loss in its first run that calls for another"),
    Why.PAIRS_SCORED: N_("{pairs:+fresh pair} have scores"),
    Why.PAIRS_BONFERRONI: N_(
        "{pairs} fresh pairs with the commit before, Bonferroni over {family}"
    ),
    Why.LOSS_ABOVE: N_("a loss of more than {loss:size}"),
    Why.GAIN_ABOVE: N_("a gain of more than {gain:size}"),
    Why.CHANGE_OPEN: N_("a change of 2 % is neither shown nor excluded"),
    Why.UNLIKE_ONCE_ONLY: N_("its first run differed, its fresh pairs do not"),
    Why.COMMITS_DIFFER: N_(
        "first runs of adjacent commits differ by {sigma:fine} (one standard deviation, "
        "changed loads hardly counted)"
    ),
    Why.BUDGET_ALLOWS_SUSPECTS: N_(
        "the budget of {budget} jobs allows {allowed} of {suspects:+suspect} to be run again; "
        "{every} jobs allow all"
    ),
    # what follows from an attempt
    Why.COUNTS_AS_SUCCESS: N_("counts as success"),
    Why.RETRIED: N_("retried on the same nodes"),
    Why.NOT_RUN_AGAIN: N_("dropped, and not run again"),
    Why.SWEEP_STOPS: N_("the sweep stops"),
    Why.NO_SESSION_WAITS: N_("ended because no session waits for it; to be run again"),
    Why.DECIDED: N_("{cls}: {follows}"),
    Why.DECIDED_ON: N_("{cls}{detail}{times}: {follows}"),
    Why.DECIDED_FOR: N_("{detail}: {follows}"),
    Why.IN_BRACKETS: N_(" ({text})"),
    Why.TIMES_IN_A_ROW: N_(", {times} times in a row"),
    Why.UNREADABLE: N_("{cls:meaning}: {detail}{times}: {follows}"),
    Why.FILE_UNREADABLE: N_("{cls:meaning}: {said}"),
    Why.DID_YOU_MEAN: N_("{flags}; did you mean {meant:, }?"),
    Why.AND_LAST_LINE: N_("{said}: {line}"),
    Why.SEE_LOG: N_("{why}; its log: {log}"),
    # a job that stands still
    Why.RANKS_BEHIND: N_(
        "{count:rank|ranks} {ranks:first 8}{place} {count:is|are} behind{step}: {doing}{others}"
    ),
    Why.ON_NODES: N_(" on {nodes:first 4}"),
    Why.ON_THAT_NODE_ALONE: N_(" on {nodes:, }, the only node with such ranks,"),
    Why.AFTER_STEP: N_(" after step {step}"),
    Why.OTHERS_DO: N_("; {others:+other rank} {doing}"),
    Why.IN_CODE: N_(" in {at}"),
    Why.RANK_GONE: N_("its program has ended ({on:or no word how})"),
    Why.RANK_SILENT: N_("its node did not answer"),
    Why.RANK_STOPPED: N_("stopped by a signal or a debugger{at}"),
    Why.RANK_IN_DISK: N_("in an uninterruptible wait of the kernel ({on:or unknown}){at}"),
    Why.RANK_READS: N_("waits for {on}{at}"),
    Why.RANK_SLEEPS: N_("sleeps{at}"),
    Why.RANK_RUNS: N_("computes on the host{at}"),
    Why.RANK_WAITS: N_("waiting{at}"),
    Why.RANK_BESIDE: N_("a thread beside the main one is in {at}"),
    Why.RANK_COMPUTES: N_("a thread beside the main one computes"),
    Why.RANK_IDLES: N_("its threads are idle, and those of the others compute"),
    Why.FEWER_COLLECTIVES: N_("NCCL counts {few} launched collectives of {many}; {doing}"),
    Why.FEWER_ENQUEUED: N_("it had enqueued {few} collectives, and others {many}"),
    Why.FEWER_COMPLETED: N_("it had completed {few} collectives, and others {many}"),
    Why.EARLIER_COLLECTIVE: N_("it timed out in collective {few}, and others in {many}"),
    Why.NO_WATCHDOG: N_(
        "its watchdog said nothing of the collective that timed out on the {others} other ranks"
    ),
    Why.FEWER_STEPS: N_("others came to step {most}; its last line: {line:or none}"),
    Why.NAMED_BY: N_("named by the line `{said}`"),
    Why.RANK_SLOWER: N_(
        "rank {rank} takes {slower:share1} longer for a step than the median of {ranks} ranks"
    ),
    Why.NO_RANK_SLOWER: N_(
        "steps {first}-{last} of {ranks} ranks: none takes clearly longer for a step than the "
        "others, which differ by {spread:share1}. Where each step waits for all ranks, the "
        "lines of a slow one look like those of the others"
    ),
    Why.ALL_STAND_ALIKE: N_(
        "no rank stands out: all {ranks} are {doing}. They wait for a device or the network"
    ),
    Why.NONE_STANDS_OUT: N_("no rank of {ranks} stands out"),
    Why.NO_STEP_IN: N_("no step, {phase}"),
    Why.LAST_STEP: N_("the last step is {step} of {steps}"),
    Why.AND_SHOWN: N_("{said}; {shown}"),
    Why.FAULTS: N_("{faults:; }"),
    Why.FAULTS_FOUND: N_("; {faults}"),
    Why.FAULTS_AFTER_RESUME: N_("; after scontrol update State=RESUME: {faults}"),
    Why.FAULTS_ARE: N_("{faults}: {follows}"),
    Why.FAULTS_STAY: N_("{faults}, and stays so after RESUME: {follows}"),
    Why.RESUMED_IN_VAIN: N_("resumed {times} times without a measured trial since"),
    Why.NOT_DONE: N_("the next attempt needs {needed}, which was not done{faults}: {follows}"),
    Why.WAITED_IN_VAIN: N_("no trial has started for {seconds} s: {follows}"),
    Why.HOURS_SPENT: N_(
        "{used:.3g} of {of:g} {limit} are spent and a trial takes about {each:.2g}, so no "
        "further one is submitted; --xlatune-{limit} raises it"
    ),
    Why.REFERENCE_CANNOT_RUN: N_("the reference {arm} cannot run: {why}"),
    Why.REFERENCE_NOT_SCORED: N_("the reference {arm} cannot be scored: {why}"),
    Why.DEPLOYED_CANNOT_RUN: N_("the cell as deployed cannot run: {why}"),
    Why.DEPLOYED_NOT_SCORED: N_("the cell as deployed cannot be scored: {why}"),
    # nodes that are not what they were
    Why.NOT_COMPARED: N_("{why}: scores before and after are not compared"),
    Why.NODES_CHANGED: N_("on {nodes:, } changed: {changes:; }"),
    Why.VERSION_CHANGED: N_("{name} {was:or absent} -> {now:or absent}"),
    Why.CODE_CHANGED: N_("the trainer's Python files in {folder}"),
    Why.COMMIT_CHANGED: N_("the commit of {folder} {was} -> {now}"),
    Why.NODES_SWAPPED: N_("nodes are {nodes:, }, were {were:, }"),
    Why.NODES_RESUMED: N_("{cls}: resumed {nodes:, }"),
    Why.NODES_FIT_AGAIN: N_("{cls}: fit again: {nodes:, }"),
    Why.SITE_DID: N_("{cls}: the site did {action}{faults}"),
    # what a session notes
    Why.LIMIT_UNTIL_OURS: N_(
        "a limit on submitted jobs is reached; the next trial waits until one of ours has "
        "ended: {error}"
    ),
    Why.LIMIT_UNTIL_OTHERS: N_(
        "a limit on submitted jobs is reached; the next trial waits until others of yours have "
        "ended: {error}"
    ),
    Why.SCHEDULER_SILENT: N_("the scheduler does not answer, all that needs it waits: {error}"),
    Why.SCHEDULER_BACK: N_("the scheduler answers again"),
    Why.AND_OTHERS: N_(" and {others:+other}"),
    Why.LOST_ATTEMPTS: N_("{finished:+finished attempt}{others} of session {session}"),
    Why.LOST_LEFT_ALONE: N_(
        "the ledger before was lost; {attempts} are left alone, also those that run"
    ),
    Why.LOST_READ_AGAIN: N_(
        "the ledger before was lost; {attempts} are read again from their own files. Which "
        "nodes were resumed or repaired meanwhile is not known, so that scores before and "
        "after may be compared"
    ),
    Why.FLAG_UNSEEN: N_(
        "nothing shows that {settings:, } of {arm} was in effect ({effect}): such a profile "
        "cannot win. Does the trainer, or a wrapper around it, set XLA_FLAGS anew? XLA was asked "
        "to write its options down. Flags of libtpu show in its own log, on a TPU alone. If "
        'nothing can show it, the sweep may declare it: SiteSettings(unseen=("{name}",))'
    ),
    Why.VARIABLE_UNSEEN: N_(
        "nothing shows that {settings:, } of {arm} was in effect ({effect}): such a profile "
        "cannot win. Of variables only those of NCCL and RCCL are shown, by their own lines, "
        "where the trainer loads it. If nothing can show it, the sweep may declare it: "
        'SiteSettings(unseen=("{name}",))'
    ),
    Why.OVERRIDE_UNSEEN: N_(
        "nothing shows that {settings:, } of {arm} was in effect ({effect}): such a profile "
        "cannot win. The trainer prints no configuration line about it. If nothing can show it, "
        'the sweep may declare it: SiteSettings(unseen=("{name}",))'
    ),
    Why.SETTINGS_OF_NONE: N_("of {profiles:, }, and no other profile's were"),
    Why.NO_FLAG_SEEN: N_(
        "no flag of {profiles:, } was seen in effect: XLA was asked to write its options down, "
        "and wrote none. Does the trainer, or a wrapper around it, set XLA_FLAGS anew? Flags "
        "of libtpu show in its own log, on a TPU alone. Such profiles win nothing. If nothing "
        "here can show a flag, the sweep says so, and goes on: "
        'SiteSettings(unseen=("xla_*",))'
    ),
    Why.LEDGER_UNREAD: N_(
        "the ledger that was moved aside is damaged, or another version of pytest-xlatune "
        "wrote it. This version cannot read its job ids and ended none of its jobs: those that "
        "still run hold their nodes. End them with scancel; `squeue --me -o '%i %j'` lists "
        "them, their names begin with {names}"
    ),
}


def sentence(reason: Reason | None, say: Say = ENGLISH) -> str:
    """Return the sentence of a reason in a language; "" of none.

    It may quote a log, so it is no markup: `plainly` has it for a document.
    """
    if reason is None:
        return ""
    return _Sentence(say).vformat(say.text_of(WORDS[reason.kind]), (), _Fields(reason.fields))


def plainly(reason: Reason | None, say: Say = ENGLISH) -> str:
    """Return the sentence of a reason as one line of a document, without markup of its own."""
    return plain(sentence(reason, say))


def joined(reasons: Iterable[Reason], between: str = "; ", say: Say = ENGLISH) -> str:
    """Return the sentences of several reasons in one line of a document."""
    return between.join(plainly(each, say) for each in reasons)


class _Fields(dict[str, Any]):
    """Fields of a reason; one that is left out is None."""

    def __missing__(self, name: str) -> None:
        return None


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.3g}"


def _share(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


def _share1(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _change(found: Sequence[float]) -> str:
    """Write a change and its interval, `+1.8 % [+0.9, +2.7]`."""
    return f"{percent(found[0])} {interval((found[1], found[2]))}"


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "change": _change,
    "fine": fine,
    "gib": _gib,
    "meaning": lambda cls: FailureClass(cls).meaning,
    "percent": percent,
    "points": points,
    "share": _share,
    "share1": _share1,
    "size": size,
    "time": duration,
}
_MORE = N_("{names} and {more} more")
_MORE_LINES = N_("{names} | and {more} further line"), N_("{names} | and {more} further lines")


class _Sentence(Formatter):
    """Fills the fields of a sentence in."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        del args
        return kwargs[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        spec, _, otherwise = f" {format_spec}".partition(" or ")
        spec = spec.strip()
        if value is None:
            return otherwise
        if isinstance(value, Reason):
            return sentence(value, self._say)
        if spec in _WRITERS:
            return _WRITERS[spec](value)
        if isinstance(value, tuple):
            return self._several([self.format_field(each, "") for each in value], format_spec)
        if spec[:1] == "+" and spec[1:2].isalpha():
            return counted(value, spec[1:])
        if "|" in spec:
            one, _, many = spec.partition("|")
            return one if value == 1 else many
        return format(value, spec)

    def _several(self, texts: Sequence[str], spec: str) -> str:
        how, _, number = spec.partition(" ")
        if how not in ("first", "lines") or not number.isdecimal():
            return spec.join(texts)
        most = int(number)
        more, between = len(texts) - most, ", " if how == "first" else " | "
        names = between.join(texts[:most])
        if more <= 0:
            return names
        if how == "first":
            return self._say(_MORE, names=names, more=more)
        return self._say(_MORE_LINES[more > 1], names=names, more=more)
