"""The batch script of a job. Pure functions.

Slurm knows the exit code of a step only as the greatest of its tasks', and 42 is greater than a permanent 2: so each
task leaves its own code in a file beside the run, and the script judges them by the table.
"""

import shlex
from typing import Any

from kanawa_runtime.exit_codes import NOT_STARTED, STOPPED, shell_test
from kanawa_runtime.launch.job import Job, chips_per_host, device_environment, hosts, joining, processes, target

#: What follows, up to the body, is the user's own.
SETUP = "# --- setup"
_HIGH_PORTS, _PORTS = 20_000, 20_000
#: Two minutes: a controller that fails over takes about one.
_PATIENCE = 60


def batch_script(job: Job, cfg: Any) -> str:
    """Returns the text for sbatch; `cfg` is the launcher's config."""
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options(job, cfg))]
    lines += ["", *_environment(job), SETUP, *cfg.setup, "", SCRIPT.format(**_parts(job, cfg))]
    return "\n".join(lines)


def options(job: Job, cfg: Any) -> list[str]:
    """Returns what sbatch is asked for."""
    nodes = hosts(job) + job.spares
    asked = {
        "job-name": job.name,
        "nodes": str(nodes),
        "ntasks-per-node": str(job.processes_per_host),
        "output": f"{home(job)}/slurm-%j.log",
        # A requeued job appends to the same file.
        "open-mode": "append",
        # To the steps, so many seconds before the time limit: the gang saves and ends with 42.
        "signal": f"TERM@{job.grace_seconds}",
        "time": cfg.time,
        "partition": job.queue,
        "account": cfg.account,
        "qos": cfg.qos,
        "priority": job.priority,
        "constraint": cfg.constraint,
        "cpus-per-task": job.resources.get("cpu", ""),
        "mem": job.resources.get("memory", ""),
        "gpus-per-node": str(chips_per_host(job)) if target(job).device.platform == "gpu" else "",
    }
    flags = ["--requeue"]
    if cfg.exclusive:
        flags.append("--exclusive")
    if job.spares:
        # The allocation outlives a node that fails: the next attempt takes one of the others.
        flags.append("--no-kill")
    return [*(f"--{name}={value}" for name, value in asked.items() if value), *flags, *cfg.options]


def home(job: Job) -> str:
    """Returns where logs and codes lie, which every node must see."""
    return f"{job.run.rstrip('/')}/launch"


def _environment(job: Job) -> list[str]:
    variables = {"KANAWA_JOB": job.name} | device_environment(job) | dict(job.environment)
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def _parts(job: Job, cfg: Any) -> dict[str, str]:
    gang = joining(job, '"$KANAWA_COORDINATOR"', '"$SLURM_PROCID"')
    joined = f"{gang[0]} {gang[1]} {shlex.join(gang[2:-1])} {gang[-1]}" if gang else ""
    container = [f"--container-image={shlex.quote(job.image)}"] if job.image else []
    return {
        "home": shlex.quote(home(job)),
        "quoted": shlex.quote(f"exec {shlex.join(job.command)} {joined}".rstrip()),
        "hosts": str(hosts(job)),
        "tasks": str(processes(job)),
        "retries": str(job.retries),
        "grace": str(job.grace_seconds),
        # To srun, none is for ever.
        "settle": str(max(1, round(cfg.settle_seconds))),
        "container": " ".join([*container, ""]) if container else "",
        "ports": str(_HIGH_PORTS),
        "span": str(_PORTS),
        "is_retry": shell_test("code"),
        "stopped": str(STOPPED),
        "patience": str(_PATIENCE),
        "not_started": str(NOT_STARTED),
        "backoff": str(max(1, round(cfg.backoff_seconds))),
        "most": str(max(1, round(cfg.most_backoff_seconds))),
    }


SCRIPT = """\
home={home}
mkdir -p "$home"
# The tasks get Slurm's signals themselves; this shell stays to read how they end.
trap : TERM
restarts=$(cat "$home/restarts-$SLURM_JOB_ID" 2>/dev/null || echo 0)
attempts=$(cat "$home/attempts-$SLURM_JOB_ID" 2>/dev/null || echo 0)
echo {grace} > "$home/grace-$SLURM_JOB_ID"

while :; do
  began=$SECONDS
  attempts=$((attempts + 1))
  echo "$attempts" > "$home/attempts-$SLURM_JOB_ID"
  export KANAWA_ATTEMPT=$attempts
  export KANAWA_CODES="$home/codes-$SLURM_JOB_ID-$KANAWA_ATTEMPT"
  export KANAWA_PORT=$(({ports} + (SLURM_JOB_ID * 31 + attempts) % {span}))
  rm -rf "$KANAWA_CODES"; mkdir -p "$KANAWA_CODES"

  # --wait: what the others get to end by themselves once one has ended. A task that is killed at once for it might be
  # in the middle of saving.
  srun --nodes={hosts} --ntasks={tasks} --wait={settle} --kill-on-bad-exit=0 {container}bash -c '
    trap : TERM
    # Of this step: an allocation with spares has more nodes than the step uses.
    first=$(scontrol show hostnames "$SLURM_STEP_NODELIST" | head -n 1)
    export KANAWA_COORDINATOR="$first:$KANAWA_PORT"
    if [ "$SLURM_PROCID" = 0 ] || [ -n "${{KANAWA_SHOW_ALL:-}}" ]; then
      "$@"; code=$?
    else
      "$@" > "$KANAWA_CODES/rank-$SLURM_PROCID.log" 2>&1; code=$?
    fi
    if [ "$code" = 127 ]; then
      # A shell has found no such program: that is no kill, and no other start would find it.
      echo "kanawa: no such program on $(hostname), or a library of it is missing: see PATH and the setup lines" >&2
      code={not_started}
    fi
    echo $code > "$KANAWA_CODES/code-$SLURM_PROCID"
    exit $code' kanawa sh -c {quoted}

  code=0; all_stopped=yes
  for rank in $(seq 0 $(({tasks} - 1))); do
    # No code: it was killed, or its node is gone.
    one=$(cat "$KANAWA_CODES/code-$rank" 2>/dev/null || echo 137)
    [ "$one" -eq {stopped} ] || all_stopped=no
    # A permanent code wins over all others, which ended because of it.
    if [ "$one" -ne 0 ]; then
      if ! {{ code=$one; {is_retry}; }}; then verdict=permanent; break; fi
      [ "$one" -gt "${{worst:-0}}" ] && worst=$one
    fi
    code=${{worst:-0}}
  done
  unset worst
  echo "$KANAWA_JOB: attempt $KANAWA_ATTEMPT ended with $code"
  if [ "${{verdict:-}}" = permanent ] || [ "$code" -eq 0 ]; then exit "$code"; fi
  if [ -e "$home/cancelled-$SLURM_JOB_ID" ]; then
    # It was to save first; what Slurm gives a job that is cancelled outright is the cluster's KillWait.
    scancel "$SLURM_JOB_ID" && sleep infinity
    exit "$code"
  fi
  if [ "$all_stopped" = yes ]; then
    # Asked to stop, and saved: by the time limit or for another job, then again in the queue, which costs no restart;
    # or by scancel. A controller that restarts, or is busy, is asked again for {patience} times 2 s.
    for left in $(seq {patience}); do
      case $(squeue --noheader --jobs="$SLURM_JOB_ID" --states=all --format=%T || echo unanswered) in
        RUNNING|SIGNALING|CONFIGURING|RESIZING)
          if scontrol requeue "$SLURM_JOB_ID"; then sleep infinity; exit "$code"; fi ;;
        unanswered) ;;
        *) break ;;
      esac
      sleep 2
    done
    exit "$code"
  fi
  if [ "$restarts" -ge {retries} ]; then
    echo "$KANAWA_JOB: no restarts are left of {retries}"
    exit "$code"
  fi
  restarts=$((restarts + 1))
  echo "$restarts" > "$home/restarts-$SLURM_JOB_ID"
  # What ended sooner than in ten minutes may be a crash loop: each pause is twice the one before.
  if [ $((SECONDS - began)) -gt 600 ]; then pause={backoff}; fi
  echo "$KANAWA_JOB: starting again in ${{pause:={backoff}}} s, restart $restarts of {retries}"
  sleep "$pause" & wait $!
  if [ -e "$home/cancelled-$SLURM_JOB_ID" ]; then exit "$code"; fi
  pause=$((pause * 2)); if [ "$pause" -gt {most} ]; then pause={most}; fi
done
"""
