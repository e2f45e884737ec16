"""What `make test` tries on a real Slurm; every other test of this folder is in `make test-all`.

A test that is a whole sweep, all waves or a study is marked `part("sweeps")`, the others get
`part("slurm")` from `conftest.py`.
"""

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
