# Start the batch script that sources this again, with the environment of a login on this node.
#
# Slurm's --export=NONE has the same purpose, but with it slurmd runs `su -` before every job and
# waits for whole seconds. Here sbatch was run with a nearly empty environment, and the user's own
# login shell defines the environment, whichever shell it is and whatever its profile prints. A
# variable that Slurm set for the job replaces that of a profile.

if [ -z "${XLATUNE_LOGIN:-}" ]; then
  job_env=() login=() reading=
  while IFS= read -r -d '' pair; do
    case "${pair%%=*}" in
      # variables that sbatch had from the submitting session, and those of bash itself
      HOME | KRB5CCNAME | LANG | LC_ALL | LD_LIBRARY_PATH | LOGNAME | PATH | SHELL | TZ | USER) ;;
      OLDPWD | PWD | SHLVL | SLURM_JWT | _) ;;
      *) job_env+=("$pair") ;;
    esac
  done <"/proc/$$/environ"
  IFS=: read -r user _ _ _ _ home shell < <(getent passwd "$(id -u)")
  shell=${shell:-/bin/sh}
  login+=("HOME=$home" "USER=$user" "LOGNAME=$user" "SHELL=$shell")
  login+=("PATH=/usr/local/bin:/usr/bin:/bin")
  # PAM reads these files at a login:  LANG="C.UTF-8"    export EDITOR=vi
  for file in /etc/environment /etc/default/locale; do
    [ -r "$file" ] || continue
    while read -r line || [ -n "$line" ]; do
      line=${line#export }
      case "${line%%=*}" in "$line" | '' | *[!A-Za-z0-9_]* | [0-9]*) continue ;; esac
      value=${line#*=} value=${value#[\"\']} value=${value%[\"\']}
      login+=("${line%%=*}=$value")
    done <"$file"
  done
  # A shell whose name begins with a dash is a login shell. Its profile may print text first, and a
  # process that it leaves running may keep the pipe open, so marks enclose the environment.
  mark='printf "\0xlatune %s\0"'
  start='cd; exec -a "-${SHELL##*/}" "$SHELL" -c "$1"'
  print_env="$mark begin; /usr/bin/env -0; $mark end"
  while IFS= read -r -d '' pair; do
    case "$reading ${pair%%=*}" in
      'yes xlatune end') reading=done && break ;;
      'yes ' | 'yes OLDPWD' | 'yes PWD' | 'yes SHLVL' | 'yes _') ;;
      yes*) login+=("$pair") ;;
      *) [ "$pair" != 'xlatune begin' ] || reading=yes ;;
    esac
  done < <(timeout -k 5 120 env -i "${login[@]}" /bin/bash -c "$start" sh "$print_env" </dev/null 2>/dev/null)
  if [ "$reading" != done ]; then
    echo "the login shell $shell of $user gave no environment within 120 s; repair its profile, or" \
      'set the Slurm option export = "NONE", so that Slurm runs the login shell' >&2
    exit 1
  fi
  exec env -i "${login[@]}" "${job_env[@]}" XLATUNE_LOGIN=yes /bin/bash "$0"
fi
unset XLATUNE_LOGIN
