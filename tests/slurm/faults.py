"""Run every fault of the table below on the lab, and print what came of each: `make slurm-faults`.

    python tests/slurm/faults.py            all of them (a quarter of an hour on a quiet machine)
    python tests/slurm/faults.py -k drain   those whose name holds the word, as pytest's -k

A fault is a test; each of its cases is an entry. *lost* counts trials that ran to their end and
have no result in the ledger, *doubled* those that ran to their end twice; - is a fault below whole
sweeps; *s* is how many seconds it took. Ends with 1 if any entry is not as expected, or a trial was
lost or doubled.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[2]
_S, _E, _C, _P = (
    "tests/slurm/test_slurm_",
    "tests/executors/test_",
    "tests/campaign/test_",
    "tests/plugin/test_",
)

# the test that injects it -> the fault, what is expected
FAULTS: dict[str, tuple[str, str]] = {
    f"{_S}faults.py::test_what_the_log_says_drops_the_profile":
        ("OOM line, unknown flag, NaN", "profile dropped, never tried again"),
    f"{_S}faults.py::test_a_node_that_goes_down_is_resumed_and_the_trial_run_again":
        ("node down while a trial runs", "node resumed, run again, a new epoch"),
    f"{_S}faults.py::test_a_persons_drain_stands_and_stops_the_sweep":
        ("a person drains a node", "the sweep stops with the reason, the drain stands"),
    f"{_S}faults.py::test_blindness_is_waited_out":
        ("Slurm answers nonsense for 15 s", "waited out"),
    f"{_S}faults.py::test_a_node_drained_by_slurm_under_the_queue_is_resumed":
        ("Slurm drains a node", "resumed"),
    f"{_S}faults.py::test_a_node_drained_before_the_start_is_named_and_nothing_submitted":
        ("node drained before the start", "named, nothing submitted"),
    f"{_S}faults.py::test_a_dead_node_stops_the_sweep_with_a_message":
        ("slurmd killed", "the sweep stops; run again, it goes on"),
    f"{_S}faults.py::test_a_cancel_from_outside_is_no_failure_and_measured_by_the_next_run":
        ("scancel by a person", "stands; the next run measures"),
    f"{_S}faults.py::test_a_killed_rank_is_run_again": ("kill -9 of a rank", "run again"),
    f"{_S}faults.py::test_a_nic_fault_needs_the_site":
        ("NIC fault", "the site's hook, else the sweep stops"),
    f"{_S}faults.py::test_the_controller_may_die_and_come_back":
        ("kill -9 of slurmctld", "waited out, no further job"),
    f"{_S}faults.py::test_killed_workers_controllers_and_rivals_lose_and_double_nothing":
        ("kill -9 of worker and session, two sessions", "jobs adopted"),
    f"{_S}faults.py::test_the_nodes_of_the_first_trial_are_those_of_all":
        ("other nodes in the next session", "refused, or begun anew"),
    f"{_S}faults.py::test_a_hitch_at_every_submission_is_waited_out":
        ("each sbatch fails once", "tried again"),
    f"{_S}faults.py::test_a_trial_that_a_person_puts_back_is_waited_for_and_run_again":
        ("a person puts a running trial back", "waited for, told, run again"),
    f"{_S}faults.py::test_a_job_that_never_starts_stops_the_sweep_with_the_remedy":
        ("a limit that never lets it start", "the sweep stops with the remedy"),
    f"{_S}faults.py::test_a_job_that_a_person_holds_is_waited_for":
        ("a person holds a job", "waited for, told"),
    f"{_S}faults.py::test_a_suspended_trial_is_told_and_its_time_does_not_count":
        ("a person suspends a trial", "told, no hang"),
    f"{_S}faults.py::test_a_preempted_trial_is_run_again": ("preempted", "run again"),
    f"{_S}faults.py::test_a_sweep_queues_behind_the_job_of_another_and_names_it":
        ("a stranger's job on a node", "queued, job named"),
    f"{_S}faults.py::test_a_number_that_the_controller_gave_away_again_is_no_longer_ours":
        ("controller lost its state, number reused", "the stranger left alone"),
    f"{_S}faults.py::test_a_work_directory_that_is_away_is_waited_for_and_told":
        ("work directory away under a sweep", "waited for, told"),
    f"{_S}faults.py::test_a_fatal_line_ends_a_trial_whose_processes_stay":
        ("fatal line, processes stay", "ended, by its class"),
    f"{_S}faults.py::test_a_hang_ends_as_its_phase_says":
        ("hang in each phase", "ended, by its phase"),
    f"{_S}faults.py::test_a_full_work_directory_ends_the_session_and_the_next_goes_on":
        ("work directory full", "ends with a message; goes on"),
    f"{_S}faults.py::test_clocks_that_jump_end_nothing_and_start_nothing":
        ("clocks jump five hours", "not noticed"),
    f"{_S}accounting.py::test_sacct_tells_the_end_of_jobs_that_the_controller_has_forgotten":
        ("controller has forgotten a job", "sacct tells its end"),
    f"{_S}accounting.py::test_a_real_limit_on_submitted_jobs_is_full_and_not_refused":
        ("MaxSubmitJobs of the accounting", "waited for, told"),
    f"{_S}accounting.py::test_a_sweep_does_not_miss_slurmdbd":
        ("slurmdbd killed under a sweep", "not missed"),
    f"{_S}accounting.py::test_no_record_of_slurm_and_no_file_of_a_run_shows_a_secret":
        ("secrets planted in twelve ways", "in no record"),
    f"{_S}sweeps.py::test_a_killed_jax_sweep_over_four_nodes_is_resumed_without_a_further_job":
        ("kill -9 of a JAX sweep", "resumed"),
    f"{_S}trials.py::test_a_signal_to_it_cancels_the_job":
        ("signal to a site's launcher", "its job cancelled"),
    f"{_S}trials.py::test_a_job_left_by_a_process_that_was_killed_is_cancelled_by_the_next":
        ("site's launcher killed", "its job found"),
    f"{_S}trials.py::test_no_secret_of_the_submitter_is_in_the_job":
        ("secret in the submitter's shell", "not in the job"),
    f"{_S}trials.py::test_a_payload_that_cannot_run_says_why":
        ("no interpreter on the node", "failed, with its words"),
    f"{_S}trials.py::test_a_bad_node_name_is_refused_at_once":
        ("bad node name", "refused at once"),
    f"{_S}trials.py::test_our_own_cancel_ends_a_running_and_a_waiting_job":
        ("our own cancel", "both end"),
    f"{_S}trials.py::test_a_job_is_not_over_while_its_processes_hold_the_nodes":
        ("processes swallow SIGTERM", "running until they are gone"),
    f"{_S}trials.py::test_kill_9_of_one_rank_ends_all_of_them":
        ("kill -9 inside a rank", "all ranks end"),
    f"{_S}trials.py::test_jobs_that_slurm_has_forgotten_are_still_over":
        ("MinJobAge passed, no slurmdbd", "the payload's word"),
    f"{_S}trials.py::test_nothing_is_submitted_twice": ("sbatch's answer is lost", "one job"),
    f"{_S}allocation.py::"
    "test_another_salloc_goes_on_and_what_waited_in_the_first_never_runs_twice":
        ("allocation: over under a trial, another", "told; the other goes on"),
    f"{_S}allocation.py::test_a_killed_payload_costs_its_trial_one_attempt":
        ("allocation: kill -9 of a payload", "run again, in the same one"),
    f"{_S}allocation.py::test_a_killed_session_loses_and_doubles_nothing":
        ("allocation: kill -9 of the session", "the next one goes on in it"),
    f"{_S}allocation.py::"
    "test_an_allocation_without_time_ends_the_sweep_and_another_one_goes_on":
        ("allocation: no time is left", "the sweep ends and says so; another goes on"),
    # with a played Slurm, where the lab would take a quarter of an hour or cannot do it
    f"{_E}slurm_poller.py::test_answers_without_our_jobs_are_a_scheduler_that_is_down":
        ("blind for so many seconds", "down, then known"),
    f"{_E}slurm_poller.py::test_a_controller_that_stays_away_ends_the_wait":
        ("controller away for 14 min, and for longer", "waited out; gives up, jobs run on"),
    f"{_E}slurm_poller.py::test_empty_rounds_in_a_row_are_lost_unless_the_log_grows":
        ("unknown, but its log grows", "not lost"),
    f"{_E}slurm_words.py::test_resumed_nodes[a silent one is left to Slurm]":
        ("silent after a restart", "no RESUME, no epoch"),
    f"{_C}trouble.py::test_a_limit_that_others_hold_is_waited_out_for_a_while":
        ("limit held by other jobs", "waited out"),
    f"{_C}trouble.py::test_a_work_directory_that_is_away_is_waited_for":
        ("work directory away", "waited for"),
    f"{_S}trials.py::test_an_sbatch_that_outlives_its_session_is_waited_for":
        ("sbatch outlives its session", "waited for"),
    f"{_E}slurm_poller.py::test_who_cancels_too_late_ends_nothing":
        ("cancelled after its end", "its result stands"),
    f"{_P}kills.py::test_a_session_that_ends_early_is_gone_on_with[Ctrl-C ends jobs]":
        ("Ctrl-C", "says so, ends the jobs"),
    f"{_P}kills.py::test_a_session_that_ends_early_is_gone_on_with[Ctrl-C that keeps jobs]":
        ("Ctrl-C, --xlatune-keep-jobs", "runs on"),
}  # fmt: skip


# what `make test` tries on a real Slurm; `make test-all` has every other test of this folder
SAMPLE = (
    "test_slurm_trials.py::test_a_trial_runs_once_on_each_pinned_node_as_the_site_asks",
    "test_slurm_trials.py::test_flags_arrive_byte_for_byte_on_every_rank",
    "test_slurm_trials.py::test_no_secret_of_the_submitter_is_in_the_job",
    "test_slurm_trials.py::test_a_bad_node_name_is_refused_at_once",
    "test_slurm_trials.py::test_our_own_cancel_ends_a_running_and_a_waiting_job",
    "test_slurm_faults.py::test_a_dead_node_stops_the_sweep_with_a_message",
    "test_slurm_trials.py::test_kill_9_of_one_rank_ends_all_of_them[the trainer]",
    "test_slurm_faults.py::test_a_killed_rank_is_run_again",
    "test_slurm_faults.py::test_a_persons_drain_stands_and_stops_the_sweep",
    "test_slurm_accounting.py::test_a_real_limit_on_submitted_jobs_is_full_and_not_refused[1]",
    "test_slurm_faults.py::test_a_node_drained_before_the_start_is_named_and_nothing_submitted",
    "test_slurm_faults.py::test_the_controller_may_die_and_come_back",
    "test_slurm_faults.py::test_killed_workers_controllers_and_rivals_lose_and_double_nothing",
    "test_slurm_faults.py::test_a_fatal_line_ends_a_trial_whose_processes_stay",
    "test_slurm_allocation.py::test_a_killed_session_loses_and_doubles_nothing",
    "test_slurm_accounting.py::test_sacct_tells_the_end_of_jobs_that_the_controller_has_forgotten",
    "test_slurm_accounting.py::test_no_record_of_slurm_and_no_file_of_a_run_shows_a_secret",
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Faults injected on a real Slurm.")
    parser.add_argument("-k", default="", help="only those whose name holds this, as pytest's -k")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder, "junit.xml")
        words = ["-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={junit}"]
        words += ["-k", given.k] if given.k else []
        subprocess.run([sys.executable, "-m", "pytest", *words, *FAULTS], cwd=ROOT, check=False)
        if not junit.exists():
            return 1
        rows = [_row(case) for case in ET.parse(junit).getroot().iter("testcase")]
    bad = [row for row in rows if row[2] != "as expected" or {row[3], row[4]} - {"0", "-"}]
    head = ("fault", "expected", "seen", "lost", "doubled", "s")
    sys.stdout.write(tabulate(rows, head, tablefmt="plain", maxcolwidths=60, disable_numparse=True))
    sys.stdout.write(f"\n\n{len(rows)} faults, {len(bad)} not as expected\n")
    return 1 if bad or not rows else 0


def _row(case: ET.Element) -> tuple[str, ...]:
    if case.get("file") is None:  # pytest's own entry of an interrupt
        return "the rest of the table", "run", "interrupted", "-", "-", "-"
    name = f"{case.get('file')}::{case.get('name')}"
    test, _, which = name.partition("[")
    if name in FAULTS:  # a case of a test with its own entry
        test, which = name, ""
    fault, expected = FAULTS[test]
    trouble = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
    seen = "as expected"
    if trouble is not None:
        seen = f"{trouble.tag}: {(trouble.get('message') or '').splitlines()[0]}"
    counted = {each.get("name"): each.get("value", "-") for each in case.iter("property")}
    return (
        f"{fault} ({which.rstrip(']')})" if which else fault,
        expected,
        seen,
        counted.get("lost", "-"),
        counted.get("doubled", "-"),
        f"{float(case.get('time', 0)):.0f}",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
