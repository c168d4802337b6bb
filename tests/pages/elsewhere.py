"""Commands that other tests run, and those that no test runs, with the reason."""

from __future__ import annotations

from typing import NamedTuple


class Elsewhere(NamedTuple):
    """A command that the tests of this folder do not run.

    Attributes:
        page: its path from the root.
        start: how the command starts, empty for all commands of the page; `...` stands for words in between.
        reason: the test that runs it, or why no test does.
    """

    page: str
    start: str
    reason: str

    def names(self, page: str, command: str) -> bool:
        """Whether this is about a command of a page."""
        return page == self.page and starts_with(command, self.start)


BENCH = "tests/bench/test_workload.py::"
COMING_FROM = "tests/test_docs_coming_from.py::"
OWN_CODE = "tests/test_docs_own_code.py::"
GENERATOR = "tests/recipes/particleflow/test_docs_generator.py::test_the_page_s_commands_work"
NETWORKS = "tests/recipes/particleflow/test_docs_networks.py::test_the_page_s_commands_work"
JETS = "tests/recipes/jets/test_docs.py::test_the_page_s_commands"
OWN_RECIPE = "tests/jobs/agent/test_docs_own_code.py::test_the_steps_to_train_an_own_recipe"
OWN_SCRIPT = "tests/jobs/agent/test_docs_own_code.py::test_the_script_of_the_page_reports_to_the_server"
PANDA = "tests/jobs/launchers/test_panda_tasks.py::"
TASK = f"{PANDA}test_a_script_is_submitted_recorded_listed_followed_and_returns_its_metrics"
POINT = "tests/tuning/test_panda.py::test_a_point_is_evaluated_in_the_working_folder"
DOCTOR = "tests/jobs/launchers/test_doctor.py::test_a_machine_that_runs_these_tests_passes_all_checks"
DISTILLED = "tests/recipes/fastsim/test_generation.py::test_the_distilled_flow_keeps_the_layers_of_its_teacher"
HOSTS = "tests/bench/test_strategies.py::test_a_study_on_real_hosts"

BY_OTHER_TESTS = tuple(
    Elsewhere(*each)
    for each in (
        ("README.md", "make demo", "tests/cli/test_demo.py::test_the_demonstration_goes_from_nothing_to_a_report"),
        ("docs/howto/bench.md", "clew bench score", "tests/bench/test_docs_bench.py::test_scores_and_comparisons_run"),
        (
            "docs/howto/bench.md",
            "clew bench compare",
            "tests/bench/test_docs_bench.py::test_scores_and_comparisons_run",
        ),
        ("docs/howto/bench.md", "clew bench node", f"{BENCH}test_a_node_is_scanned"),
        ("docs/howto/bench.md", "clew bench events", f"{BENCH}test_an_image_has_fixed_events_with_a_checksum"),
        ("docs/howto/bench.md", "clew bench hepix", f"{BENCH}test_the_entry_of_the_container_passes_everything_on"),
        (
            "docs/howto/bench.md",
            "clew bench particleflow --data",
            "tests/bench/test_particleflow.py::test_delphes_files_in_the_place_of_synthetic_events",
        ),
        (
            "docs/howto/bench.md",
            "clew bench particleflow --deterministic",
            "tests/bench/test_particleflow.py::test_the_same_bits_twice_and_nearly_so_with_other_threads",
        ),
        (
            "docs/howto/bench.md",
            "clew bench particleflow",
            f"{BENCH}test_a_run_leaves_what_hepscore_reads_and_two_copies_have_the_same_bits",
        ),
        ("docs/howto/choose-strategy.md", "clew bench strategies", HOSTS),
        ("docs/howto/export-cpp.md", "", f"{OWN_CODE}test_the_program_prints_the_numbers_of_python"),
        (
            "docs/howto/export.md",
            "clew export runs/trigger-001",
            "tests/inference/export/test_hls4ml.py::test_the_emulation_takes_raw_columns_and_agrees_with_the_run",
        ),
        ("docs/howto/from-ariadne.md", "clew init graphs --from-ariadne train.cfg", f"{COMING_FROM}test_ariadne"),
        ("docs/howto/from-ariadne.md", "clew data generate", f"{COMING_FROM}test_ariadne"),
        ("docs/howto/from-ariadne.md", "clew prepare graphs.yaml --input events ", f"{COMING_FROM}test_ariadne"),
        ("docs/howto/from-ariadne.md", "clew train graphs.yaml...--output", f"{COMING_FROM}test_ariadne"),
        (
            "docs/howto/from-ariadne.md",
            "",
            "tests/models/test_from_others.py::test_gin_files_become_settings_that_train",
        ),
        ("docs/howto/from-itwinai.md", "", f"{COMING_FROM}test_itwinai"),
        ("docs/howto/from-lightning.md", "", "tests/models/lightning/test_page.py::test_every_command_runs"),
        ("docs/howto/from-nnlo.md", "", "tests/test_docs_models.py::test_every_command_runs"),
        ("docs/howto/from-ray-tune.md", "", f"{COMING_FROM}test_ray_tune"),
        ("docs/howto/from-weaver.md", "", "tests/models/weaver/test_conversion.py::test_the_commands_of_the_page_run"),
        ("docs/howto/jobs.md", "clew init my_recipe", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew data generate my_recipe.py", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew submit my_recipe.py", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew jobs 1", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew jobs 2", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew runs get 1", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew runs show first", OWN_RECIPE),
        ("docs/howto/jobs.md", "clew submit --kind script", OWN_SCRIPT),
        ("docs/howto/panda.md", "clew jobs", TASK),
        ("docs/howto/panda.md", "clew follow", TASK),
        ("docs/howto/panda.md", "clew logs", TASK),
        ("docs/howto/panda.md", "clew stop", f"{PANDA}test_a_task_is_cancelled_once"),
        ("docs/howto/own-metric.md", "", f"{OWN_CODE}test_the_metric_decides_about_the_best_weights"),
        ("docs/howto/own-reader.md", "", f"{OWN_CODE}test_the_reader_feeds_a_training"),
        ("docs/howto/own-recipe.md", "", f"{OWN_CODE}test_the_recipe_finds_the_z_boson"),
        ("docs/howto/service.md", "clew serve --store s3:", "tests/sites/test_s3_service.py"),
        ("docs/howto/service.md", "clew serve --database", "tests/server/test_postgres.py"),
        ("docs/howto/sites.md", "clew doctor$", DOCTOR),
        ("docs/howto/tune-machines.md", "clew tune evaluate", POINT),
        (
            "docs/howto/tune-machines.md",
            "clew tune steer",
            "tests/tuning/test_panda.py::test_the_real_client_carries_both_commands",
        ),
        ("docs/howto/upgrade.md", "clew doctor", DOCTOR),
        ("docs/reference/recipes/fastsim.md", "clew train fastsim...model.kind=flow", DISTILLED),
        ("docs/reference/recipes/fastsim.md", "clew train fastsim...model.kind=distilled", DISTILLED),
        ("docs/reference/recipes/fastsim.md", "clew bench strategies", HOSTS),
        ("docs/howto/trees.md", "", "tests/models/test_estimators_page.py::test_every_command_runs"),
        (
            "docs/reference/recipes/jets.md",
            "clew init tagger --like jets/toptagging",
            f"{JETS}_for_the_public_files_work",
        ),
        (
            "docs/reference/recipes/jets.md",
            "clew prepare tagger.yaml --input train",
            f"{JETS}_for_the_public_files_work",
        ),
        ("docs/reference/recipes/jets.md", "", f"{JETS}_work"),
        ("docs/reference/recipes/particleflow.md", "clew data generate", GENERATOR),
        ("docs/reference/recipes/particleflow.md", "clew prepare", NETWORKS),
        ("docs/reference/recipes/particleflow.md", "clew train", NETWORKS),
        ("docs/reference/recipes/particleflow.md", "clew evaluate", NETWORKS),
        ("docs/reference/recipes/particleflow.md", "clew predict", NETWORKS),
        ("docs/reference/recipes/particleflow-files.md", "", GENERATOR),
        ("docs/start/install.md", "clew doctor$", DOCTOR),
        ("docs/start/ten-minutes.md", "", "tests/test_docs_start.py::test_ten_minutes_run"),
    )
)
"""The test runs the command of the page, or the same one with other values. It exists, which a test checks."""

IMAGES = "builds or runs an image: minutes, root and packages; `make test-sites` does it (tests/sites/test_images.py)"
SLURM = "needs Slurm; `make test-sites` runs such commands (tests/sites/test_slurm*.py)"
CONDOR = "needs HTCondor; `make test-sites` runs such commands (tests/sites/test_condor.py)"
RUCIO = "needs Rucio; `make test-sites` runs such commands (tests/sites/test_rucio*.py)"
GEANT = "needs Geant4 and minutes; tests/recipes/fastsim/test_geant4.py simulates showers where it is installed"
INSTALLS = "installs packages from the network"
HOURS = "measures for hours"

NOT_RUN = tuple(
    Elsewhere(*each)
    for each in (
        ("README.md", "make test", "runs these tests; CI calls it"),
        (
            "docs/contributing/release.md",
            "make release",
            "builds and installs in a fresh environment: network, minutes",
        ),
        (
            "docs/explanation/reliability.md",
            "make chaos",
            "ten minutes and more; tests/chaos/test_chaos.py is a short storm",
        ),
        ("docs/explanation/reliability.md", "make soak", "an hour; `make test-all` runs two minutes of it"),
        ("docs/howto/agents.md", "clew agent --on", SLURM),
        ("docs/howto/containers.md", "docker", IMAGES),
        ("docs/howto/containers.md", "apptainer", IMAGES),
        ("docs/howto/containers.md", "apt-get", IMAGES),
        ("docs/howto/containers.md", "containers/build.sh", IMAGES),
        ("docs/howto/containers.md", "podman", IMAGES),
        ("docs/howto/containers.md", "digest=", IMAGES),
        ("docs/howto/containers.md", "clew submit", IMAGES),
        ("docs/howto/jobs-data.md", "clew...rucio:", RUCIO),
        (
            "docs/howto/panda.md",
            "clew submit",
            "needs PanDA and Rucio; tests/jobs/launchers/test_panda_tasks.py submits to an emulation",
        ),
        ("docs/howto/processes.md", "srun", SLURM),
        ("docs/howto/service.md", "pip install", INSTALLS),
        ("docs/howto/service.md", "rsync", "another program, which copies a folder"),
        ("docs/howto/bench.md", "clew bench scale...--on", SLURM),
        ("docs/howto/sites.md", "clew bench scale...--on", SLURM),
        ("docs/howto/sites.md", "clew follow", SLURM),
        ("docs/howto/sites.md", "clew logs", SLURM),
        ("docs/howto/sites.md", "clew stop", SLURM),
        ("docs/howto/sites.md", "clew train --resume", SLURM),
        ("docs/howto/sites.md", "clew site check", SLURM),
        ("docs/howto/sites.md", "clew doctor --on", SLURM),
        ("docs/howto/storage.md", "clew data get root:", "reads a file of CERN over the network"),
        ("docs/howto/storage.md", "clew...rucio:", RUCIO),
        ("docs/howto/testing.md", "pip install", INSTALLS),
        ("docs/howto/tune-machines.md", "clew agent...--on", SLURM),
        ("docs/howto/upgrade.md", "git pull", "changes the clone"),
        ("docs/howto/upgrade.md", "pip install", INSTALLS),
        ("docs/measurements/asynchronous.md", "clew bench strategies", HOURS),
        ("docs/measurements/jets.md", "python benchmarks/quality_jets_networks.py", HOURS),
        ("docs/measurements/scaling.md", "", HOURS),
        ("docs/reference/recipes/fastsim.md", "clew data generate...geant4", GEANT),
        ("docs/reference/recipes/fastsim.md", "pip install", INSTALLS),
        ("docs/start/install.md", "python -m venv", INSTALLS),
        ("docs/start/install.md", ". venv/bin/activate", INSTALLS),
        ("docs/start/install.md", "pip install", INSTALLS),
        ("docs/start/install.md", "make", INSTALLS),
        ("docs/start/install.md", ". .venv/bin/activate", INSTALLS),
        ("docs/start/install.md", "clew doctor --on", SLURM),
    )
)
"""Commands that no test runs, with the reason."""


def starts_with(command: str, start: str) -> bool:
    """Whether a command starts with these words; `...` stands for words in between, `$` for the end."""
    if start.endswith("$"):
        return command == start[:-1]
    first, _, rest = start.partition("...")
    return command.startswith(first) and rest in command[len(first) :]
