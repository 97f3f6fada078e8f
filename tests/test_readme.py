"""Each sentence of the README is shown by a test that the table below names.

Whoever changes a sentence looks for the test that shows the new one, and changes the table with it.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.real_sessions import read_sessions, summary
from pytest_cloudbench.load.gate.settings import GateSettings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")

SHOWN = """\
**Measure cloud storage with pytest, and fail the build when it gets worse.**
    tests/fleet/test_regression_gate.py::test_regression_breaks_the_gate_with_figures_and_counts

A hundred sensors upload a file every five seconds.
    tests/test_docs.py::test_the_experiments_in_a_document_run

The test passes if every file arrived intact and 99 % of the uploads were answered within a second of when they were
due.
    tests/test_docs.py::test_the_experiments_in_a_document_run
    tests/judge/test_stats.py::test_a_silent_loss_is_found_and_corrected_in_place
    tests/load/test_engine.py::test_response_times_count_from_the_due_time_during_a_freeze

It runs in one process, or with `-n 50` in fifty at once, or on [many machines](docs/vantage-points.md), against any of
[a dozen services](#services) and all that rclone knows, a folder, or an emulated service that comes with the plugin and
needs no account.
    tests/fleet/test_same_work.py::test_every_number_of_agents_does_the_same_work
    tests/fleet/test_same_work.py::test_fifty_agents_do_the_same_work
    tests/fleet/hosts/test_suites_on_hosts.py::test_a_suite_runs_on_three_hosts
    tests/test_readme.py::test_a_dozen_services_have_an_extra_each
    tests/drivers/test_driver_conformance.py::test_conformance

**Which provider is the better one for this load**, and is the difference more than noise?
    tests/suites/test_comparing.py::test_configured_difference_between_providers_is_found
    tests/suites/test_comparing.py::test_two_equal_providers_are_not_marked

**How many sensors, users or threads does this service carry**, and what happens above that?
    tests/suites/test_capacity.py::test_sensors_that_wait_too_long_are_too_many
    tests/suites/test_concurrency.py::test_knee_is_at_the_number_of_provider_slots

**Did our storage service get slower, or lose a file?**
    tests/fleet/test_regression_gate.py::test_regression_breaks_the_gate_with_figures_and_counts
    tests/fleet/test_gate_facts.py::test_loss_breaks_gate_in_the_first_session

One line makes it a gate in CI.
    tests/test_examples_ci.py::test_a_broken_gate_makes_the_job_red_and_is_shown_on_github

**Does our client survive** throttling, timeouts, corrupt data and a frozen server?
    tests/test_examples.py::test_a_client_is_tested_against_a_service_that_misbehaves

Against an embedded Dropbox, offline.
    tests/test_examples.py::test_a_client_is_tested_against_a_service_that_misbehaves
    tests/test_network_guard.py::test_child_process_cannot_reach_other_hosts

**What does a sync client really send?**
    tests/suites/test_sync_capabilities.py::test_table_1_finds_the_configured_capabilities

Chunks, deltas, compression, idle chatter: read from its packets, with evidence.
    tests/lab/detect/test_verdicts.py::test_every_combination_is_told_apart
    tests/suites/test_idle.py::test_idle_suite_finds_polling_period_or_its_absence

**Do the papers' results still hold?**
    tests/suites/test_iot.py::test_tables_default_to_the_profile_of_their_year
    tests/suites/test_own_suite.py::test_published_values_are_shown_beside_an_installed_suite

Their experiments, repeated, with the published figures beside yours.
    tests/suites/test_sync_capabilities.py::test_every_published_row_has_a_test_of_its_name
    tests/report/test_published.py::test_measured_run_is_shown_with_difference

In a clone, two commands; each sets up `.venv` when it is first used (two minutes, once):
    tests/test_readme.py::test_two_commands_set_up_and_run

The first is `pytest suites/iot -n 50`, and takes about 75 seconds: fifty processes are sensors that upload to
an embedded service, as in a 2014 thesis on sensors and Dropbox.
    tests/test_readme.py::test_two_commands_set_up_and_run
    tests/test_docs.py::test_command_of_the_documents_runs
    tests/suites/test_iot.py::test_tables_default_to_the_profile_of_their_year

Each result is printed as soon as it is there.
    tests/report/test_result_line.py::test_result_is_printed_when_its_test_ends

No account and no configuration.
    tests/test_docs.py::test_command_of_the_documents_runs

The second runs the project's own tests (about seven minutes on two cores).
    tests/test_readme.py::test_two_commands_set_up_and_run

Elsewhere, `pip install .` puts the plugin and its suites into your environment: about 100 MB, Python 3.11 or later.
    tests/test_packaging.py::test_one_experiment_runs_after_an_ordinary_install_from_the_index
    tests/test_packaging.py::test_wheel_carries_package_suites_data_and_licence
    tests/test_readme.py::test_numbers_are_those_of_the_project

The first line is a load without any file: it measures, stores, and shows the test that would do the same.
    tests/suites/test_load.py::test_load_command_runs_the_described_load_and_prints_its_test

The second prints at its end what arrived, beside what the thesis measured.
    tests/report/test_table.py::test_published_loss_rate_has_a_column
    tests/test_packaging.py::test_one_experiment_runs_from_the_wheel

*Throttled* uploads were refused by the service's rate limit; *late p99* is how late the load generator itself was,
in ms:
    tests/report/test_table.py::test_throttling_is_separate_from_failure
    tests/load/test_engine.py::test_when_the_pool_is_full_lateness_grows_and_is_recorded

The thesis's two tables run on `emulated:dropbox-2014`, whose six parameters are fitted to the thesis's figures:
agreement shows that the measurement works, and says nothing about Dropbox today.
    tests/suites/test_iot.py::test_tables_default_to_the_profile_of_their_year
    tests/test_fit_dropbox_2014.py::test_profile_reproduces_the_tables_even_when_bursts_arrive_spread
    tests/test_readme.py::test_numbers_are_those_of_the_project

The suite's other tests run on `emulated:dropbox` and have no published figures to match.
    tests/suites/test_iot.py::test_tables_default_to_the_profile_of_their_year

With several providers the run ends with [one table](docs/comparing.md) that marks the best, if the difference is
more than noise.
    tests/suites/test_comparing.py::test_configured_difference_between_providers_is_found
    tests/suites/test_comparing.py::test_two_equal_providers_are_not_marked

On a noisy machine, `--cloudbench-versus` [measures two of them in turns](docs/comparing.md#two-sides-in-turns)
until it knows whether they differ, or its time is up.
    tests/fleet/test_versus.py::test_each_experiment_is_one_entry_of_both_sides
    tests/fleet/test_versus.py::test_the_table_and_junit_give_the_answer
    tests/fleet/test_versus_gate.py::test_comparison_without_enough_time_is_inconclusive

Without Python, describe it in TOML:
    tests/plugin/collect/test_bench_file.py::test_the_example_runs_as_it_is_written

[The first hour](docs/tutorial.md) explains the output and goes on from there.
    tests/test_docs.py::test_links_lead_somewhere

Every experiment is judged against its last 10 to 20 stored runs: met, broken or inconclusive.
    tests/fleet/test_regression_gate.py::test_junit_tells_the_three_answers_apart
    tests/judge/test_gate.py::test_ten_runs_are_the_least
    tests/test_readme.py::test_numbers_are_those_of_the_project

Of 61 sessions in which nothing had changed, [none was red](docs/method/gate.md).
    tests/test_readme.py::test_numbers_are_those_of_the_project
    tests/test_bench.py::test_the_documents_have_the_table_of_the_recorded_sessions

Bounds of your own need no history:
    tests/fleet/test_claims.py::test_absolute_gates

The first bound is absolute, the second relative to the latest stored run that passed under the same conditions.
    tests/fleet/test_claims.py::test_absolute_gates
    tests/fleet/test_claims.py::test_relative_gates
    tests/fleet/test_gates.py::test_a_run_that_failed_never_becomes_the_baseline
    tests/judge/test_baseline.py::test_the_latest_comparable_entry_is_chosen

A broken gate fails its test with one line.
    tests/fleet/test_gates.py::test_broken_gate_fails_a_test_that_ignores_its_result

`--cloudbench-gate` skips a test that it cannot judge, and with `--cloudbench-gate-strict` fails it.
    tests/fleet/test_regression_gate.py::test_without_history_everything_is_inconclusive_and_skipped_and_stored
    tests/fleet/test_regression_gate.py::test_strict_gate_fails_inconclusive_tests_with_status_6

A bound that cannot be judged fails its test, too, except a relative one that has no run to compare with yet.
    tests/fleet/test_properties.py::test_a_gate_that_cannot_be_judged_fails_and_is_red
    tests/judge/test_expect.py::test_a_relative_gate_without_a_baseline_is_a_note_unless_the_user_has_named_one

A file lost silently, or changed, breaks every gate, from the first run on, unless a bound of yours allows it.
    tests/fleet/test_gate_facts.py::test_loss_breaks_any_bound_unless_the_user_allows_it
    tests/fleet/test_gate_facts.py::test_loss_breaks_gate_in_the_first_session
    tests/fleet/test_gate_facts.py::test_loss_breaks_gate_without_any_repetition

Metrics, verdicts and doubts are in the JUnit file.
    tests/fleet/test_properties.py::test_junit_has_the_metrics_of_every_experiment
    tests/fleet/test_properties.py::test_a_doubt_and_a_verdict_are_properties_too

[More on gates](docs/gates.md).
    tests/test_docs.py::test_links_lead_somewhere

| file services | `dropbox`, `gdrive`, `onedrive`, `box`, `mega` | `emulated:dropbox`, `emulated:gdrive`, ... |
    tests/drivers/test_driver_conformance.py::test_conformance

| object stores | `s3://BUCKET`, `azure://CONTAINER`, `gcs://BUCKET`, `swift://CONTAINER` | `local:s3`, ...: real
servers that the run starts |
    tests/drivers/test_driver_conformance.py::test_conformance
    tests/commands/test_testbed.py::test_every_server_can_be_installed_by_its_own_name
    tests/providers/test_sessions.py::test_a_real_server_belongs_to_the_run

| file servers | `webdav://HOST/PATH`, `sftp://HOST/PATH`, `folder:PATH` | `local:webdav`, `local:sftp` |
    tests/drivers/test_driver_conformance.py::test_conformance
    tests/commands/test_testbed.py::test_every_server_can_be_installed_by_its_own_name

| grids and arrays | `tahoe:URL`, `raid:FILE.toml` | `local:tahoe`, `raid:six` |
    tests/drivers/test_driver_conformance.py::test_conformance
    tests/raid/test_config.py::test_a_shipped_array_is_loaded_by_its_name

| all the others | `rclone:REMOTE:PATH` (any remote of yours), `opendal:SERVICE` | |
    tests/drivers/test_driver_rclone.py::test_the_users_own_remotes_are_used
    tests/drivers/test_driver_conformance.py::test_conformance_of_a_driver_for_many_services

Dropbox and folders need nothing else; any other needs the extra of its name, as does its emulator: `pip install
'.[s3]'`.
    tests/test_readme.py::test_a_dozen_services_have_an_extra_each
    tests/test_packaging.py::test_an_experiment_runs_and_keeps_its_records_without_any_extra

What `local:webdav` and some others need besides, `cloudbench testbed install` installs.
    tests/commands/test_testbed.py::test_every_server_can_be_installed_by_its_own_name
    tests/commands/test_testbed.py::test_every_recipe_names_the_row_of_its_programs

Retries are switched off, so that nothing is hidden; the requests of an operation, where known, are in the results.
    tests/drivers/faults/test_faults.py::test_fault
    tests/drivers/test_driver_tables.py::test_table_agrees_with_the_drivers
    tests/drivers/test_driver_requests.py::test_every_verb_is_counted_as_the_emulator_counts_it
    tests/fleet/test_details.py::test_words_requests_and_preparation_of_a_driver_of_ones_own

[Providers](docs/providers.md) has the details, and [real accounts](docs/accounts.md) how to log in safely.
    tests/test_docs.py::test_links_lead_somewhere

| `iot`, `capacity` | how many sensors, or operations per second, before files are lost or late? |
    tests/test_readme.py::test_every_suite_has_its_row
    tests/suites/test_iot.py::test_tables_default_to_the_profile_of_their_year
    tests/suites/test_capacity.py::test_the_rate_of_the_throttle_is_bracketed

| `concurrency`, `segmentation`, `constancy` | how many threads, and how many parallel segments, are fastest? |
    tests/suites/test_concurrency.py::test_knee_is_at_the_number_of_provider_slots
    tests/suites/test_segmentation.py::test_the_best_level_is_the_number_of_slots
    tests/suites/test_constancy.py::test_the_category_of_a_provider_with_so_many_slots

| `filesize`, `transfer` | is there a file size that is handled badly, and what does a transfer cost besides its
bytes? |
    tests/suites/test_filesize.py::test_a_size_that_is_handled_badly_is_flagged_and_no_other
    tests/suites/test_transfer.py::test_bytes_on_the_wire_are_those_of_the_file_and_a_little_more

| `readiness`, `consistency` | when can another client download what was uploaded, and does a read ever see
something old? |
    tests/fleet/test_readiness.py::test_a_delay_that_was_set_is_measured_back_within_the_resolution
    tests/suites/test_consistency.py::test_a_delay_is_found_again

| `availability` | how many writes succeed over hours or weeks? It can be stopped and resumed |
    tests/suites/test_availability.py::test_errors_of_the_provider_are_counted_and_make_the_availability
    tests/suites/test_availability.py::test_killed_series_resumes_after_its_last_round

| `sync_capabilities`, `sync_performance`, `idle`, `updates`, `mobile`, `propagation` | what does a sync client
send, and when is it done? |
    tests/suites/test_sync_capabilities.py::test_table_1_finds_the_configured_capabilities
    tests/suites/test_sync_performance.py::test_measured_traffic_and_times_match_the_protocol
    tests/suites/test_idle.py::test_idle_suite_finds_polling_period_or_its_absence
    tests/suites/test_updates.py::test_updates_that_come_faster_are_batched
    tests/suites/test_mobile.py::test_the_round_trip_is_in_the_completion_of_each_file
    tests/suites/test_propagation.py::test_the_second_device_of_the_reference_client_is_asked_for

| `batching` | what does a batching folder in front of a sync client save, and what delay does it add? |
    tests/suites/test_batching.py::test_single_bytes_go_in_one_push_and_cost_a_tenth

| `cloudraid` | what does an array of providers cost, and what does it survive? |
    tests/suites/test_cloudraid.py::test_a_third_more_is_stored_of_three_and_phases_are_parts_of_the_whole
    tests/suites/test_cloudraid.py::test_one_of_three_may_be_lost_and_two_may_not

| `security` | is what it stores encrypted, and are links and deleted files closed to others? |
    tests/suites/test_security.py::test_table_has_all_questions_beside_advertised_answers
    tests/suites/test_security.py::test_a_revoke_that_does_nothing_is_found
    tests/suites/test_security.py::test_deleted_content_that_can_be_restored_is_found
    tests/suites/test_security_accounts.py::test_deduplication_across_accounts_is_detected
    tests/suites/test_security_accounts.py::test_a_removal_that_does_nothing_is_found

| `datacenters` | who runs its servers, where are they, and is content stored there? |
    tests/suites/test_datacenters.py::test_local_service_is_located_at_this_machine
    tests/net/locate/test_small_internet.py::test_places_owners_and_anycast_are_as_they_were_set
    tests/net/locate/test_placing.py::test_slow_content_proves_no_storage_behind

The default grid takes about two minutes; `--grid paper` uses the papers' own parameters.
    tests/test_docs.py::test_command_of_the_documents_runs
    tests/test_make_published.py::test_names_of_the_loss_tables_are_the_suites_own

[What each suite does](docs/suites.md).
    tests/test_docs.py::test_links_lead_somewhere

These paths exist in a checkout.
    tests/test_readme.py::test_every_suite_has_its_row

An installed package has the same suites: `pytest --pyargs pytest_cloudbench.suites.concurrency`.
    tests/test_packaging.py::test_wheel_carries_package_suites_data_and_licence
    tests/test_packaging.py::test_suites_are_collected_from_the_wheel

The first command reads a capture (this one is in the checkout): flows, names, unique and resent bytes, and whether
the numbers can be trusted.
    tests/net/traffic/test_captures.py::test_the_command_prints_the_analysis
    tests/net/traffic/test_captures.py::test_unique_bytes_equal_the_sent_bytes
    tests/net/traffic/test_captures.py::test_verdicts_of_captures_are_as_known

The second starts a real client and its server on an isolated network [link](docs/reference/link.md), changes files,
and tells from the packets whether the client chunks, bundles, deduplicates, compresses or sends deltas: yes, no, or
unknown, with the evidence.
    tests/lab/clients/test_conformance.py::test_every_change_arrives
    tests/net/link/test_link.py::test_two_links_do_not_see_each_other
    tests/lab/detect/test_recorded.py::test_recorded_clients
    tests/lab/detect/test_verdicts.py::test_no_verdict_is_ever_wrong

It knows syncthing, lsyncd, unison, rclone, restic, your desktop client, and any tool that a small TOML file
[describes](docs/clients.md).
    tests/lab/clients/test_registry.py::test_names
    tests/lab/clients/test_external.py::test_only_a_new_folder_is_written_and_removed
    tests/lab/clients/test_command.py::test_the_example_of_the_documents_runs

Both need `pip install '.[capture]'`.
    tests/test_packaging.py::test_missing_extra_is_named_in_one_line

[`cloudbench savingbox`](docs/reference/savingbox.md) puts a folder in front of a client's, and batches changes on
the way, so that it sends less.
    tests/savingbox/test_box.py::test_as_many_pushes_as_the_rules_give
    tests/suites/test_batching.py::test_single_bytes_go_in_one_push_and_cost_a_tenth

Dropbox's API over TLS, in its own process; the official SDK works with it unchanged.
    tests/emulators/test_emulator_sdk.py::test_upload_then_download
    tests/emulators/test_emulator_process.py::test_foreground_emulator_prints_one_line_and_ends_cleanly
    tests/emulators/test_emulator_process.py::test_certificate_names

Rates, latency, errors, resets, corruption, freezes and quotas are numbers in a
[profile](docs/reference/emulator.md), and can be changed while it runs.
    tests/emulators/test_emulator_profile.py::test_apply_changes_one_setting_and_checks_it
    tests/emulators/test_emulator_behaviour.py::test_error_rate
    tests/emulators/test_emulator_behaviour.py::test_freeze
    tests/test_docs.py::test_the_profile_in_the_documents_is_one

`--provider raid:array.toml` encrypts, codes and spreads what is written over n providers, any k of which are enough
to read it.
    tests/raid/test_failing_children.py::test_children_see_neither_names_nor_content
    tests/raid/test_failing_children.py::test_any_k_children_are_enough_to_read_and_fewer_fail

It is a provider like the others: the same suites measure what [an array](docs/reference/raid.md) costs and what it
survives.
    tests/raid/test_conformance.py::test_an_array_of_three_folders_conforms
    tests/suites/test_cloudraid.py::test_suites_of_providers_measure_an_array

A driver is one class; [this page](docs/extending/driver.md) has a whole one.
    tests/drivers/test_adding_a_driver.py::test_driver_is_tested_in_the_copied_checkout
    tests/drivers/test_adding_a_driver.py::test_code_of_the_page_is_well_formed

The plugin finds it by entry point, and `pytest --pyargs pytest_cloudbench.suites.conformance --provider SPEC`
checks that it does what it declares, in any order of operations.
    tests/drivers/test_third_party.py::test_it_is_found_in_every_process_after_an_installation_by_pip
    tests/test_packaging.py::test_the_wheel_checks_a_driver
    tests/drivers/test_wrong_drivers.py::test_wrong_driver_fails_exactly_the_expected_tests

There are pages for an [emulator](docs/extending/emulator.md), a [sync client](docs/extending/sync-client.md), a
[suite](docs/extending/suite.md) and a [metric](docs/extending/metric.md), too.
    tests/emulators/test_adding_an_emulator.py::test_it_answers_over_http
    tests/lab/sync/test_adding_a_sync_client.py::test_it_is_measured
    tests/suites/test_adding_a_suite.py::test_its_own_tests_pass
    tests/judge/test_adding_a_metric.py::test_a_gate_on_the_metric_can_break

**A stalled service cannot hide.**
    tests/load/test_engine.py::test_response_times_count_from_the_due_time_during_a_freeze

Response time counts from when an operation was *due*, not from when it could start.
    tests/load/test_engine.py::test_response_times_count_from_the_due_time_during_a_freeze

**Unknown is not zero.**
    tests/report/test_table.py::test_unknown_is_a_dash_and_zero_is_zero
    tests/judge/test_stats.py::test_an_unknown_metric_is_none_never_zero

A lost agent, a late schedule or a capture with gaps makes a result *inconclusive*, never green.
    tests/fleet/test_lost_agents.py::test_a_killed_agent_loses_at_most_its_last_second
    tests/fleet/test_claims.py::test_expectations_and_saturation
    tests/fleet/test_properties.py::test_doubts_are_yellow
    tests/lab/sync/test_entries.py::test_numbers_with_doubts_are_inconclusive

Percentiles are exact, from every record.
    tests/judge/test_stats.py::test_percentiles_have_the_exact_rank_at_any_count
    tests/judge/test_stats.py::test_a_summary_counts_every_record_and_keeps_refused_apart_from_ok

**Nothing is lost.**
    tests/results/test_oplog.py::test_a_process_killed_with_sigkill_has_lost_its_last_second_at_most

Each operation's record is in a file within a second, whatever is killed later, and ends up in a Parquet file that
any tool can read.
    tests/results/test_oplog.py::test_a_process_killed_with_sigkill_has_lost_its_last_second_at_most
    tests/fleet/test_recover.py::test_records_of_killed_controller_are_recovered
    tests/results/test_parquet.py::test_other_programs_and_we_read_the_same

**Emulated results say so.**
    tests/report/test_table.py::test_emulated_result_is_labelled
    tests/test_docs.py::test_the_experiments_in_a_document_run

The embedded service's rates are our choices, each with its
[reason](src/pytest_cloudbench/emulators/profiles/dropbox.toml).
    tests/emulators/test_emulator_profile.py::test_every_number_of_the_default_profile_has_a_reason
    tests/emulators/test_emulator_profile.py::test_every_reason_is_a_choice_or_has_a_date

Such a run measures your client and your machine, not Dropbox, and every table and stored result says so.
    tests/report/test_table.py::test_emulated_result_is_labelled
    tests/report/test_sides.py::test_emulated_and_real_sides_are_labelled

**A real account is safe.**
    tests/providers/test_money.py::test_nothing_is_written_to_an_account_before_somebody_agrees
    tests/drivers/test_driver_conformance.py::test_a_real_account_is_journaled

A run writes to one folder and removes it at the end; `--max-ops` and `--max-bytes` limit it; tokens appear in no
output.
    tests/load/test_sandbox.py::test_a_folder_without_marker_is_left_alone_also_on_flat_keys
    tests/commands/test_cli.py::test_a_run_leaves_the_folder_as_it_was
    tests/fleet/test_claims.py::test_budgets
    tests/fleet/test_sessions.py::test_tokens_issued_during_a_run_appear_in_no_report
    tests/fleet/test_sessions.py::test_issued_tokens_appear_in_no_log_warning_or_internal_error

[Real accounts](docs/accounts.md).
    tests/test_docs.py::test_links_lead_somewhere

**It stays out of the way.**
    tests/compat/test_strangers.py::test_nothing_changes

Tests that do not use its fixtures run as if it were not installed.
    tests/compat/test_strangers.py::test_nothing_changes
    tests/compat/test_plugins.py::test_reports_are_the_same

`mkdocs serve` shows the documents as a site.
    tests/test_docs.py::test_the_site_is_built_without_a_warning_and_needs_no_other_place

Licence: [Apache-2.0](LICENSE).
    tests/test_packaging.py::test_wheel_carries_package_suites_data_and_licence
"""
"""Sentences, each with the tests that show it in the indented lines below."""

CLAIMS_NOTHING = {
    "What you can find out:": "it introduces a list",
    "This is part of a run on two cores.": "numbers of one run, which differ from run to run",
    "Save the test above as `test_sensors.py`, and replace `/mnt/nas` with a folder of yours:": "it is an instruction",
}
"""Sentences that no test can show, each with the reason."""


# --- reading ---


def sentences(text: str) -> list[str]:
    """Return the sentences of a document's paragraphs and list items, and the rows of its tables, each on one line.

    Headings, also those of tables, code blocks, and paragraphs that consist of links are left out.
    """
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^\|.*\|\n\|[-|]+\|$", "", prose, flags=re.MULTILINE)
    texts: list[str] = []
    for lines in re.split(r"\n{2,}|\n(?=- |\|)", prose):
        block = " ".join(lines.split()).removeprefix("- ")
        if block.startswith("#") or not re.sub(r"\[[^]]*\]\([^)]*\)|[·\s]", "", block):
            continue
        texts += [block] if block.startswith("|") else re.split(r"(?<=[.?!])\s+(?=[A-Z`*[])|(?<=[.?!]\*\*)\s+", block)
    return texts


def table(text: str) -> list[tuple[str, list[str]]]:
    """Return the sentences of a table such as SHOWN, each with its tests."""
    entries = [paragraph.splitlines() for paragraph in re.split(r"\n{2,}", text.strip())]
    return [
        (" ".join(" ".join(line for line in lines if not line.startswith(" ")).split()),
         [line.strip() for line in lines if line.startswith(" ")])
        for lines in entries
    ]  # fmt: skip


@functools.cache
def names_of_tests(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    body = ast.parse((ROOT / path).read_text("utf-8")).body if (ROOT / path).is_file() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


TABLE = table(SHOWN)


# --- the table is complete ---


def test_each_sentence_is_in_the_table_once() -> None:
    in_readme = Counter(sentences(README))
    in_table = Counter([*(sentence for sentence, _ in TABLE), *CLAIMS_NOTHING])
    problems = [f"only in the README (which test shows it?): {sentence}" for sentence in in_readme - in_table]
    problems += [f"only in the table (changed, or gone?): {sentence}" for sentence in in_table - in_readme]
    assert not problems, "\n".join(problems)


def test_the_tests_of_the_table_exist() -> None:
    assert [sentence for sentence, tests in TABLE if not tests] == [], "no test shows it"
    test_ids = {test for _, tests in TABLE for test in tests}
    assert (
        sorted(
            test_id
            for test_id in test_ids
            if test_id.partition("::")[2] not in names_of_tests(test_id.partition("::")[0])
        )
        == []
    )


def test_reading_of_sentences_and_of_the_table() -> None:
    text = (
        "# A heading\n\nIt is\nshort. `pip install .` installs it. It costs 5.9 % of ...: nothing\n\n"
        "```text\nNo prose.\n```\n\n"
        "- **Bold.** One [item](a.md), or\n  two? *Yes.*\n- Another\n\n"
        "| head | of a table |\n|---|---|\n| a row. With | two cells |\n\n[a](a.md) ·\n[b](b.md)\n\n[A link](a.md).\n"
    )
    assert sentences(text) == [
        "It is short.",
        "`pip install .` installs it.",
        "It costs 5.9 % of ...: nothing",
        "**Bold.**",
        "One [item](a.md), or two?",
        "*Yes.*",
        "Another",
        "| a row. With | two cells |",
        "[A link](a.md).",
    ]
    assert table("One that is\nlong.\n    a::b\n\nTwo.\n    c::d\n    e::f\n") == [
        ("One that is long.", ["a::b"]),
        ("Two.", ["c::d", "e::f"]),
    ]
    assert names_of_tests("tests/not_there.py") == frozenset()


# --- sentences that no other test shows ---


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of each row of the table below a heading."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [row.strip("| ").split(" | ") for row in sentences(section) if row.startswith("|")]


@pytest.mark.parametrize("target", ["iot", "test"])
def test_two_commands_set_up_and_run(target: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    of_other_makes = ("MAKE", "MFLAGS", "STAMP", "PY")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_other_makes)}
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    set_up, pytest_called, arguments = output.partition(" -m pytest ")
    assert "tools/setup.sh" in set_up
    assert pytest_called
    assert ("suites/iot -n 50" if target == "iot" else "not slow and not truth") in arguments


def test_a_dozen_services_have_an_extra_each() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    *_, others = rows = [re.findall(r"`([a-z0-9]+)", cells[1]) for cells in rows_of("Services")]
    providers = {name for row in rows for name in row}
    assert others == ["rclone", "opendal"]
    assert len(providers - {*others, "folder", "raid"}) == 12
    assert providers - extras.keys() == {"dropbox", "folder"}


def test_every_suite_has_its_row() -> None:
    suites = [name for cells in rows_of("Suites that are ready to run") for name in re.findall(r"`(\w+)`", cells[0])]
    folders = {path.parent.name for path in ROOT.glob("suites/*/__init__.py")}
    # Those of `cloudbench put` and of drivers, which have other sections.
    assert sorted([*suites, "load", "conformance"]) == sorted(folders)


def test_numbers_are_those_of_the_project() -> None:
    figures = summary(read_sessions(ROOT / "benchmarks" / "real-sessions.jsonl"))
    assert (figures["judged_sessions"], figures["alarmed_sessions"]) == (61, 0)
    assert GateSettings().runs == 20
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"
    profile = ROOT / "src/pytest_cloudbench/emulators/profiles/dropbox-2014.toml"
    reasons = tomllib.loads(profile.read_text("utf-8"))["why"]
    assert len([key for key, reason in reasons.items() if reason.startswith("fitted")]) == 6
