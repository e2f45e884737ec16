"""What a pretending trainer does as XLA: it writes down every option that it has read."""

from __future__ import annotations

# lines of a trainer's program, at its top level and after `import os`; the last of a name decides
TELL_OPTIONS = """\
asked = os.environ.get("XLA_FLAGS", "")
to = asked.partition("--xla_dump_to=")[2].split('"')[1:2]
if to and os.environ.get("SLURM_PROCID", "0") == "0":
    os.makedirs(to[0], exist_ok=True)
    with open(os.path.join(to[0], "module_0001.jit_train_step.config.pbtxt"), "w") as file:
        read = (flag[2:].partition("=") for flag in asked.rpartition('"')[2].split())
        for name, value in {name: value or "true" for name, _, value in read}.items():
            print(f"  {name}: {value}", file=file)
"""
