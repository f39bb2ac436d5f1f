"""The quick tests, which `python -m pytest -q -m quick -n 2` runs in less than a minute: some of every package.

For each package what tests it: a file, or one function of a file. Chosen is what goes through much code in little time;
`test_quick.py` asks that every package is here.
"""

from __future__ import annotations

from collections.abc import Mapping

QUICK: Mapping[str, tuple[str, ...]] = {
    "autosched.errors": ("cli/test_main.py::test_every_error_is_one_sentence_with_its_exit_code",),
    "autosched.target": ("test_target.py",),
    "autosched.ir": ("ir/test_expr.py", "ir/test_printer.py", "ir/test_size.py", "ir/test_verify.py"),
    "autosched.ir.instructions": ("ir/test_atomics.py", "ir/test_tiles.py"),
    "autosched.ir.interpreter": ("ir/test_interpret.py", "ir/test_blocks.py"),
    "autosched.ir.closed_forms": ("ir/test_program.py",),
    "autosched.te": (
        "te/test_compute.py",
        "te/test_dag.py",
        "te/test_empty.py",
        "te/test_refusals.py",
        "te/test_sizes.py",
    ),
    "autosched.te.operators": ("te/test_operators.py", "te/test_registry.py"),
    "autosched.te.rewrites": (
        "te/test_exponents.py",
        "te/test_narrow.py",
        "te/test_short_integers.py",
        "te/test_windows.py::test_values_stay",
    ),
    "autosched.te.reference": ("te/test_reference.py",),
    "autosched.schedule": ("schedule/test_limits.py", "schedule/test_refusals.py"),
    "autosched.schedule.steps": (
        "schedule/test_places_step.py::test_places_are_of_32_bits_where_they_fit_and_read_in_order",
        "schedule/test_widen_step.py::test_refusals",
        "schedule/test_flatten_step.py::test_refusals",
        "schedule/test_matricize_step.py::test_refusals",
    ),
    "autosched.lower": ("lower/test_pipeline.py",),
    "autosched.lower.symbolic": ("lower/test_launch_bounds.py::test_registers_follow", "lower/test_joining.py"),
    "autosched.lower.register_tiles": ("lower/test_register_tiles.py",),
    "autosched.lower.passes": ("lower/test_tails.py", "lower/test_borders.py"),
    "autosched.codegen": ("codegen/test_prefix_scan.py::test_other_reducers_and_types",),
    "autosched.codegen.llvm": ("codegen/test_strided.py::test_to_the_end_of_the_array",),
    "autosched.codegen.llvm.tiles": ("codegen/test_windows.py::test_windows_compute_what_the_reference_does",),
    "autosched.codegen.llvm.math": ("codegen/test_vector_math.py::test_edges",),
    "autosched.codegen.c": ("codegen/test_c_bounds.py", "codegen/test_c_kernels.py::test_the_text_of_a_small_kernel"),
    "autosched.codegen.c.tiles": ("codegen/test_zigzag.py::test_small_and_odd_tiles_stay_as_they_are",),
    "autosched.runtime": (
        "runtime/test_gate.py",
        "runtime/test_kernel.py",
        "runtime/test_pool.py::test_every_task_runs_once_in_each_region",
    ),
    "autosched.runtime.gpu": ("runtime/test_dlpack.py", "runtime/test_gpu_kernel.py::test_numpy_in_and_out"),
    "autosched.runtime.simulator": ("runtime/test_simulator.py::test_ptx_becomes_calls",),
    "autosched.measure": (
        "measure/test_check.py",
        "measure/test_protocol.py",
        "measure/test_data_set.py",
        "measure/test_problem.py",
    ),
    "autosched.measure.gpu": ("measure/test_gpu_script.py::test_problem_beyond_the_memory_is_refused_with_sizes",),
    "autosched.store": ("store/test_database.py", "store/test_jsonl.py"),
    "autosched.tuner": ("tuner/test_population.py", "tuner/test_memory_check.py", "tuner/test_definition.py"),
    "autosched.graph": ("graph/test_graph.py",),
    "autosched.graph.fusion": ("graph/test_partition.py::test_bytes_against_arithmetic",),
    "autosched.graph.memory": ("graph/test_memory.py",),
    "autosched.graph.operators": ("graph/test_operators.py",),
    "autosched.graph.gguf": ("graph/gguf/test_reader.py",),
    "autosched.graph.onnx": ("graph/onnx/test_import.py", "graph/onnx/test_traces.py"),
    "autosched.graph.onnx.rules": ("graph/onnx/test_rules.py",),
    "autosched.graph.onnx.rules.learning": ("graph/onnx/test_runtime.py::test_features",),
    "autosched.graph.torch": ("graph/test_torch.py::test_types_that_there_are_not",),
    "autosched.graph.torch.rules": ("graph/test_torch_rules.py::test_every_rule_is_for_an_operator_of_torch",),
    "autosched.graph.passes": (
        "graph/passes/test_canonical_expressions.py",
        "graph/passes/test_empty_values.py::test_results_with_elements",
        "graph/passes/test_passes.py::test_a_block_of_a_transformer",
    ),
    "autosched.graph.passes.layout": ("graph/passes/test_view_slices.py",),
    "autosched.graph.passes.quantisation": ("graph/passes/test_fold_scales.py",),
    "autosched.kernel.shipped": (
        "kernel/test_shipped_table.py::test_devices_with_fewer_threads_share_the_table_of_a_class",
    ),
    "autosched.kernel.sizes": (
        "kernel/test_sized_kernel.py::test_sizes_are_of_built_in_operators_as_well",
        "kernel/test_sizes_tuning.py::test_weights_are_of_all_combinations",
    ),
    "autosched.kernel": ("test_api.py::test_compile_without_records_takes_the_analytic_best",),
    "autosched.planning": ("planning/test_storage.py::test_each_home_of_the_arena_is_checked",),
    "autosched.artifacts": ("artifacts/test_network.py::test_another_processor_is_refused",),
    "autosched.executor": ("executor/test_model.py",),
    "autosched.executor.model_cache": (
        "executor/test_model_cache.py::test_an_index_out_of_range_has_the_same_message",
    ),
    "autosched.verification": ("verification/test_verify.py::test_distances",),
    "autosched.network_tuning": ("network_tuning/test_strategies.py", "network_tuning/test_objectives.py"),
    "autosched.inspection": ("inspection/test_render.py",),
    "autosched.torch_backend": ("torch_backend/test_memory_format.py",),
    "autosched.api": ("test_api.py::test_tune_then_everything_that_is_done_with_records",),
    "autosched.cli": ("cli/test_values.py", "cli/test_tune.py"),
    "autosched.cli.network": ("cli/test_networks.py::test_files_are_networks_by_their_names_and_workloads_are_none",),
    "search_spaces": ("search_spaces/test_space.py",),
    "search_spaces.cpu": ("search_spaces/test_cpu_rules.py",),
    "search_spaces.gpu": ("search_spaces/test_gpu_sketches.py::test_rows_are_one_kernel",),
    "cost_model": (
        "cost_model/test_legality.py",
        "cost_model/test_parts.py",
        "cost_model/test_model.py::test_ranker_is_deterministic_and_refits_by_a_fifth",
    ),
    "cost_model.analysis": ("cost_model/test_analysis.py::test_matmul_executions_with_tails",),
    "cost_model.cpu": ("cost_model/test_model.py::test_draft_knows_what_hurts",),
    "cost_model.gpu": ("cost_model/test_gpu_model.py::test_what_is_known_of_a_good_product",),
    "experiments": ("experiments/test_cycles.py", "experiments/test_my_ops.py", "experiments/test_tuning_curves.py"),
    "experiments.differential": ("experiments/test_differential.py::test_guard_bytes_show_a_write",),
    "experiments.gpu": ("experiments/test_gpu_script.py::test_rows_and_totals",),
    "experiments.gpu.forms": ("experiments/test_card_forms.py::test_a_wrong_result_is_told",),
    "experiments.networks": ("experiments/test_networks.py",),
    "experiments.nnsmith": (
        "experiments/test_differential.py::test_not_a_number_and_infinities_are_equal_to_themselves_only",
    ),
    "experiments.pipelines": ("experiments/test_pipelines.py::test_an_unknown_program_is_named",),
    "experiments.pipelines.programs": (
        "experiments/test_pipelines.py::test_a_wrong_side_is_not_timed_and_the_fastest_schedule_by_hand_is_kept",
    ),
    "experiments.regret": ("experiments/test_regret.py::test_the_name_of_an_operator_is_all_that_it_is",),
    "experiments.report": ("experiments/test_report.py",),
    "experiments.scoreboard": ("experiments/test_scoreboard.py::test_the_command_refuses_what_it_does_not_know",),
    "tests.faults": ("faults/test_sample.py::test_a_lost_row_and_a_damaged_one_break_the_bounds",),
    "tests.fuzz": ("fuzz/test_hostile.py::test_a_crash_costs_its_own_seed_only",),
    "tests.replay": ("replay/test_replay.py",),
    "README.md": ("documents/test_pages.py::test_commands_are_accepted", "test_structure.py"),
    "pyproject.toml": ("test_wheel.py",),
}


def is_quick(file: str, function: str) -> bool:
    """Whether the table names a test function or its whole file; `file` as it lies in tests/."""
    return not _NAMED.isdisjoint((file, f"{file}::{function}"))


def has_quick(file: str) -> bool:
    return file in _FILES


_NAMED = frozenset(name for names in QUICK.values() for name in names)
_FILES = frozenset(name.partition("::")[0] for name in _NAMED)
