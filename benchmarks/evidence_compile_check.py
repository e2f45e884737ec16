"""How many profiles compiling alone shows to need no run, without a GPU, and in what time.

    python -m venv v; v/bin/pip install "jax==0.10.2" "jax-cuda12-pjrt==0.10.2"    # no CUDA needed
    python benchmarks/evidence_compile_check.py --python v/bin/python [--programs dp fsdp pp tp ep]
    python benchmarks/evidence_compile_check.py --python v/bin/python --catalog 0.10.2

Every profile of a list such as a team has, or of what the catalog chooses for the program's axis
and a release (its rules have then left out what they know to do nothing), is compiled for a GPU by
`pytest_xlatune.prepare.compile_check`, in a process of its own, for the programs of
`compile_check_programs.py`. Of a catalog the last line says which share of it is decided without
a run, by a rule or by compiling; other vendors' profiles are not in it. The slowest compilation is
told by the clock and by the CPU time of its process: what others do on the machine moves the first.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pytest_xlatune import profile
from pytest_xlatune.catalog.candidates import candidates
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.evidence.hlo.difference import finding_line
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.prepare.compilers import Way, by_function, find_target, named_targets, screen

G = "--xla_gpu_"
PROFILES = {
    "ag-128m": f"{G}all_gather_combine_threshold_bytes=134217728",
    "ag-1g": f"{G}all_gather_combine_threshold_bytes=1073741824",
    "ag-8g": f"{G}all_gather_combine_threshold_bytes=8589934592",
    "ar-1g": f"{G}all_reduce_combine_threshold_bytes=1073741824",
    "rs-1g": f"{G}reduce_scatter_combine_threshold_bytes=1073741824",
    "pipelined-ag": f"{G}enable_pipelined_all_gather=true",
    "pipelined-rs": f"{G}enable_pipelined_reduce_scatter=true",
    "pipelined-ar": f"{G}enable_pipelined_all_reduce=true",
    "pipeline-ag-on": f"{G}pipeline_all_gather=on",
    "double-buffering": f"{G}enable_while_loop_double_buffering=true",
    "overlap-2": f"{G}experimental_parallel_collective_overlap_limit=2",
    "overlap-4": f"{G}experimental_parallel_collective_overlap_limit=4",
    "lhs": f"{G}enable_latency_hiding_scheduler=true",
    "lhs-slop-95": f"{G}memory_limit_slop_factor=95",
    "sol-off": f"{G}enable_analytical_sol_latency_estimator=false",
    "sync-collectives": f"{G}disable_async_collectives=allcollectives",
    "p2p-alone": f"{G}enable_pipelined_p2p=true",
    "decomposer-alone": f"{G}collective_permute_decomposer_threshold=1024",
    "p2p-decomposed": f"{G}enable_pipelined_p2p=true "
    f"{G}collective_permute_decomposer_threshold=1024",
    "windowed-einsum": f"{G}threshold_for_windowed_einsum_mib=0 "
    f"{G}multi_streamed_windowed_einsum=false",
    "ag-by-dim-off": f"{G}enable_all_gather_combine_by_dim=false",
    "triton-off": f"{G}enable_triton_gemm=false",
    "no-remat": "--xla_disable_hlo_passes=rematerialization",
    "priority-off": f"{G}enable_highest_priority_async_stream=false",
    "graphs-off": f"{G}enable_command_buffer=",
    "nccl-channels": f"{G}nccl_collective_max_nchannels=16",
    "async-ag-of-old": f"{G}enable_async_all_gather=true",
    "ag-suffix": f"{G}all_gather_combine_threshold_bytes=1G",
}


def _cpu_s() -> float:
    """Return the CPU seconds of the compilations so far: what a loaded machine does not change."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--programs", nargs="+", default=["fsdp", "pp", "tp"])
    parser.add_argument("--target", choices=named_targets(), default="h100")
    parser.add_argument("--catalog", metavar="JAXLIB", help="what the catalog has for a release")
    options = parser.parse_args()
    profiles = [profile(name, flags) for name, flags in PROFILES.items()]
    with tempfile.TemporaryDirectory() as name:
        target = find_target(options.target)
        for program in options.programs:
            if options.catalog:
                context = Context(jaxlib=options.catalog, device="sm_90")
                chosen = candidates(program.upper(), context)
                profiles = [*chosen.profiles]
                ruled = [each for each in chosen.left_out if "'s; the device is" not in each.why]
            way = by_function(
                f"compile_check_programs:{program}",
                target=target,
                topology="1x1x8",
                python=options.python,
                folder=Path(__file__).parent,
            )
            limit = target.memory_bytes
            found, begin, cpu_s = [], time.perf_counter(), _cpu_s()
            where = Path(name, program)
            started: list[float] = []  # CPU seconds of all before each compilation

            def told(each: Profile, way: Way = way, started: list[float] = started) -> LaunchSpec:
                started.append(_cpu_s())
                return way(each)

            longest_s = 0.0
            for each in screen(
                profiles, told, folder=where, memory_limit_bytes=limit, is_away=True
            ):
                found.append(each)
                longest_s = max(longest_s, _cpu_s() - started[-1])
                print(f"{program:5}", finding_line(each, 18)[:150], flush=True)
            spent = time.perf_counter() - begin
            counts = Counter("as another profile" if e.twin else str(e.cls) for e in found)
            print(
                f"{program}: {sum(e.needs_no_run for e in found)} of {len(found)} need no run, in "
                f"{spent:.0f} s, {_cpu_s() - cpu_s:.0f} s of CPU: "
                + ", ".join(f"{count} {said}" for said, count in counts.most_common())
                + "\n",
                flush=True,
            )
            if options.catalog:
                own = sum(each.needs_no_run for each in found)
                decided, of = own + len(ruled), len(found) + len(ruled)
                print(
                    f"{program}: {decided} of {of} of the catalog ({100 * decided / of:.0f} %) "
                    f"decided without a run: {len(ruled)} by rules, {own} by compiling, the "
                    f"slowest in {max(each.took_s for each in found):.1f} s by the clock (load "
                    f"{os.getloadavg()[0]:.0f}), {longest_s:.1f} s of CPU\n",
                    flush=True,
                )


if __name__ == "__main__":
    main()
