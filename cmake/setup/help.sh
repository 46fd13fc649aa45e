# What is said without doing anything: usage, and the help of one command. None of it sets up LibTorch or waits.

# Of each command the first line says it all in short; what hangs below it belongs to it.
usage() {
  cat <<'TEXT'
Lockstep: a C++ course, test suite and library about data-parallel training.

  ./lockstep start [STEP] [--python]  from one device to DDP, in five steps
  ./lockstep list                     the lessons, and what each one teaches
  ./lockstep run [LESSON|all] [...]   run lessons, every variant of each
                                      --python: its pitfalls in Python
  ./lockstep explain [SLUG] [--diff]  a pitfall: its code, why, and the fix
                                      without a name, all pitfalls
  ./lockstep exercise VERB LESSON     mend what is wrong, and have it judged
                                      VERB is start, hint, check or reset
                                      --python: a program in Python
  ./lockstep detective [...]          a run with a hidden fault:
                                      find it; --case 1 is the easiest,
                                      --language python, --two faults
  ./lockstep watch -- COMMAND...      run a job, and name what is wrong
  ./lockstep prove -- COMMAND...      run a job a few times, and say whether
                                      it does what one process would
  ./lockstep diagnose DIR...          name what went wrong in a recorded run
                                      or, of several folders, in its attempts
  ./lockstep compare DIR DIR          say where two recorded runs part
                                      --html FILE: also as a page
  ./lockstep matrix DIR...            score that on runs whose truth is known
                                      or, with --checker, a program of yours
  ./lockstep report [DIR...] [...]    one HTML page of what runs reported
                                      of a recorded job: report-DIR.html here
  ./lockstep test [...]               build all, run the tests
                                      --tier quick (the default) or full;
                                      further options go to ctest
  ./lockstep bench [NAME] [...]       list the benchmarks, or run one
  ./lockstep docs                     make a site of all pages, and show it
  ./lockstep doctor                   what is here, and what is missing
  ./lockstep setup [...]              only set up and configure
                                      --launchers: Slurm and Open MPI, too, and
                                      --browser: Chromium, which tests use
  ./lockstep build                    set up and build everything
  ./lockstep wheel                    build the Python package for pip

Every command but doctor first installs and builds what it needs.
Set-up options, anywhere in the line:
  --torch VERSION   LibTorch of this version, in an environment of its own
                    (LOCKSTEP_TORCH)
  --prefix DIR      your own LibTorch: the folder that holds include/ and lib/
                    (LOCKSTEP_TORCH_PREFIX)
  --compiler NAME   clang (the default where present) or g++ (LOCKSTEP_COMPILER)
LOCKSTEP_WERROR=1 makes warnings errors; LOCKSTEP_PYTHON names the Python that
environments are made with.
What was asked for goes to standard output, in order; progress, notes and errors
to standard error.
Exit codes: 0 as expected, 1 verdict wrong, 2 usage, 3 could not run,
77 skipped, 124 deadline, 130 interrupted.
TEXT
}

# Fits a terminal of 24 rows.
overview() {
  usage | sed -n '1,2p; /^  \.\/lockstep \(docs\|wheel\)/d; /^  \.\/lockstep/p'
  printf '\nbegin with: ./lockstep start   more: ./lockstep --help\n'
}

command_usage() {
  usage | awk -v command="$1" '/^  \.\/lockstep/ { on = $2 == command } /^$/ { on = 0 } on'
  printf '\nAll commands, and the options of set-up: ./lockstep --help\n'
}

asks_for_help() {
  local word
  for word in "$@"; do
    case "$word" in
      -h | --help) return 0 ;;
      --) return 1 ;;
    esac
  done
  return 1
}

# COMMAND ARGUMENT..., one of which is -h or --help
job_help() {
  case "$1" in
    run | exercise) if has_word --python "$@"; then exec python3 "$ROOT/lessons/python/$1.py" --help; fi ;;
  esac
  case "$1" in
    run) help_of_run "${@:2}" ;;
    list | explain | exercise | diagnose | compare) help_of_course "$@" ;;
    bench) help_of_bench "${@:2}" ;;
    detective) python3 "$ROOT/lessons/detective/detective.py" --help ;;
    matrix) python3 "$ROOT/evaluation/recorded_runs.py" --help ;;
    docs) if environment_ready; then "$PYTHON" "$ROOT/docs/site/build.py" --help; fi ;;
    start) if environment_ready; then "$PYTHON" "$ROOT/lessons/start/run.py" --help; fi ;;
    report) if environment_ready; then job_report --help; fi ;;
    prove) if environment_ready; then (run_prove --help); fi ;;
    watch)
      if environment_ready; then
        choose_compiler
        if [[ -e "$BUILD/python/lockstep_torch/built_for.py" ]]; then run_watch --help; fi
      fi ;;
  esac
  command_usage "$1"
}

# run LESSON --help is the built lesson's; what it says is not known before.
help_of_run() {
  case "${1-}" in
    '' | all | -*) ;;
    *)
      find_lesson "$1"
      environment_places
      choose_compiler
      if [[ -x "$BUILD/lockstep-course" && -x "$BUILD/bin/$LESSON" ]]; then run_course run "$@"; fi
      say "$LESSON is not built yet: its own options and variants are shown after ./lockstep run ${LESSON%%_*}" ;;
  esac
  help_of_course run --help
}

# The program behind the commands answers where it is built; else it is built without LibTorch, unless that had to wait.
help_of_course() {
  environment_places
  choose_compiler
  if [[ ! -x "$BUILD/lockstep-course" && -z "$PREFIX" ]] && ! environment_ready; then
    leave_torch_out
    choose_compiler
  fi
  if [[ ! -x "$BUILD/lockstep-course" ]]; then
    if guide_answers "$1"; then run_guide "$@"; fi
    if set_up_elsewhere; then return; fi
    set_up
    build lockstep-course
  fi
  run_course "$@"
}

help_of_bench() {
  choose_compiler
  if [[ -z "${1-}" || "$1" == -* ]]; then
    job_bench
    exit 0
  fi
  local script
  script="$(bench_script "$1")"
  if [[ -n "$script" ]]; then
    if environment_ready; then exec "$PYTHON" "$script" --help; fi
  elif [[ -x "$BUILD/benchmarks/$1" ]]; then
    exec "$BUILD/benchmarks/$1" --help
  fi
}
