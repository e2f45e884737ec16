# Start the batch script that sources this again, with the environment of a login on this node.
#
# The same is what Slurm's --export=NONE is for, but there slurmd runs `su -` before every job, and
# waits for it by the second. Here sbatch was run with next to nothing in its environment, and the
# user's own login shell says what a login is: whatever shell it is, whatever its profile prints.
# What Slurm set for the job counts before what a profile sets.

if [ -z "${XLATUNE_LOGIN:-}" ]; then
  own=() login=() said=
  while IFS= read -r -d '' pair; do
    case "${pair%%=*}" in
      # what sbatch needed of the submitting session, and bash's own
      HOME | KRB5CCNAME | LANG | LC_ALL | LD_LIBRARY_PATH | LOGNAME | PATH | SHELL | TZ | USER) ;;
      OLDPWD | PWD | SHLVL | SLURM_JWT | _) ;;
      *) own+=("$pair") ;;
    esac
  done <"/proc/$$/environ"
  IFS=: read -r user _ _ _ _ home shell < <(getent passwd "$(id -u)")
  shell=${shell:-/bin/sh}
  login+=("HOME=$home" "USER=$user" "LOGNAME=$user" "SHELL=$shell")
  login+=("PATH=/usr/local/bin:/usr/bin:/bin")
  # what PAM reads at a login:  LANG="C.UTF-8"    export EDITOR=vi
  for file in /etc/environment /etc/default/locale; do
    [ -r "$file" ] || continue
    while read -r line || [ -n "$line" ]; do
      line=${line#export }
      case "${line%%=*}" in "$line" | '' | *[!A-Za-z0-9_]* | [0-9]*) continue ;; esac
      value=${line#*=} value=${value#[\"\']} value=${value%[\"\']}
      login+=("${line%%=*}=$value")
    done <"$file"
  done
  # a shell whose name begins with a dash is a login shell. Its profile may print before, and what
  # it left running may hold our end of the pipe after: the marks say what is the environment
  mark='printf "\0xlatune %s\0"'
  start='cd; exec -a "-${SHELL##*/}" "$SHELL" -c "$1"'
  tell="$mark begin; /usr/bin/env -0; $mark end"
  while IFS= read -r -d '' pair; do
    case "$said ${pair%%=*}" in
      'yes xlatune end') said=all && break ;;
      'yes ' | 'yes OLDPWD' | 'yes PWD' | 'yes SHLVL' | 'yes _') ;;
      yes*) login+=("$pair") ;;
      *) [ "$pair" != 'xlatune begin' ] || said=yes ;;
    esac
  done < <(timeout -k 5 120 env -i "${login[@]}" /bin/bash -c "$start" sh "$tell" </dev/null 2>/dev/null)
  if [ "$said" != all ]; then
    echo "the login shell $shell of $user gave no environment within 120 s; mend its profile, or" \
      'set the Slurm option export = "NONE", so that Slurm logs in by itself' >&2
    exit 1
  fi
  exec env -i "${login[@]}" "${own[@]}" XLATUNE_LOGIN=yes /bin/bash "$0"
fi
unset XLATUNE_LOGIN
