# The commands.

# setup [--launchers] [--browser]
job_setup() {
  local option for_tests=()
  for option in "$@"; do
    case "$option" in
      --launchers | --browser) for_tests+=("${option#--}") ;;
      *) usage_error "setup takes --launchers, --browser, or nothing: $option" ;;
    esac
  done
  set_up
  for option in ${for_tests[@]+"${for_tests[@]}"}; do set_up_group "$option"; done
  say "ready: ${BUILD#"$ROOT"/}"
}

job_build() {
  if (($#)); then usage_error "build takes no argument: $1"; fi
  set_up
  build
  say "built: ${BUILD#"$ROOT"/}"
}

# watch [options] -- COMMAND ...: a Python job, or a C++ one that has lockstep::record. What watches is the Python package,
# here without pip: its folder in the build stands in PYTHONPATH. What is wrong in the call is told before anything is built.
# The build runs in a subshell: the job has this process's descriptors and variables, and nothing of the build's.
job_watch() {
  if find_python; then
    PYTHONPATH="$ROOT/python" "$BASE_PYTHON" -B -m lockstep_torch.command_line watch --dry-run "$@" </dev/null || exit
  fi
  (require_watch) || exit
  environment_places
  choose_compiler
  run_watch "$@"
}

# prove [options] -- COMMAND ...: in Python alone, so nothing is built.
job_prove() {
  set_up
  set_up_done
  run_prove "$@"
}

run_prove() {
  exec env "PYTHONPATH=$ROOT/python${PYTHONPATH:+:$PYTHONPATH}" "LOCKSTEP_COMMAND=$ROOT/lockstep" \
    "$PYTHON" -B -m lockstep_torch.command_line prove "$@"
}

# require_watch [TARGET ...]: and what else is to be built.
require_watch() {
  set_up
  if [[ ! -f "$BUILD/python/lockstep_torch/built_for.py" ]]; then
    fail "watch needs the Python package, which was not configured." \
      "It wants the headers of $PYTHON (Debian: python3-dev). Then: ./lockstep setup"
  fi
  build _extension "$@"
  set_up_done
}

# Python ignores some signals itself, so it is told which ones this process was started with.
run_watch() {
  local name mask ignored=0
  while read -r name mask; do if [[ "$name" == SigIgn: ]]; then ignored="$mask"; fi; done </proc/self/status
  exec env "PYTHONPATH=$BUILD/python${PYTHONPATH:+:$PYTHONPATH}" "LOCKSTEP_COMMAND=$ROOT/lockstep" \
    "LOCKSTEP_IGNORED=$ignored" "$PYTHON" -m lockstep_torch.command_line watch "$@"
}

# wheel: the Python package, built for the torch that is set up here, as a file for pip.
job_wheel() {
  local folder="$ROOT/build/wheels/torch-$TORCH" log="$STATE/log/wheel.log" wheel
  if (($#)); then usage_error "wheel takes no argument: $1"; fi
  if [[ -n "$PREFIX" ]]; then
    fail "a wheel is for a Python that has torch, and --prefix names none." \
      "With that Python: pip install --no-build-isolation ./python (docs/python.md)."
  fi
  set_up
  rm -rf -- "$folder"
  say "building the Python package for torch $TORCH, in about 2 minutes"
  if ! logged "$log" '^$' env "CXX=$CXX" "$PYTHON" -m pip wheel --disable-pip-version-check --no-index \
    --no-build-isolation --no-deps --wheel-dir "$folder" "$ROOT/python"; then
    show_end_of "$log" 20
    fail "the wheel could not be built (log: $log)."
  fi
  for wheel in "$folder"/*.whl; do
    printf '%s\n' "$wheel"
    printf 'pip install %q\n' "$wheel"
  done
}

# start [STEP] [--python]: the steps of lessons/start. Python's need no build.
job_start() {
  if [[ -n "$PREFIX" ]]; then fail "start runs torchrun, and --prefix names no Python that has it." "Leave --prefix out."; fi
  set_up
  if ! has_word --python "$@"; then build start; fi
  set_up_done
  exec "$PYTHON" "$ROOT/lessons/start/run.py" --programs "$BUILD/bin/start" "$@"
}

# detective [options]: it runs lessons' variants; with --language python their Python programs, with --two mutants.
job_detective() {
  local script="$ROOT/lessons/detective/detective.py" language
  if has_word --list "$@"; then exec python3 "$script" "$@"; fi
  language="$(detective_language "$@")"
  if [[ "$language" == python ]]; then
    require_watch lockstep-course
    export PYTHONPATH="$BUILD/python${PYTHONPATH:+:$PYTHONPATH}"
  else
    set_up
    if has_word --two "$@"; then build lockstep-course mutant; else build lockstep-course lessons/all; fi
    set_up_done
  fi
  exec "${PYTHON:-python3}" "$script" --course "$BUILD/lockstep-course" --programs "$BUILD/bin" --mutant "$BUILD/evaluation/mutant" "$@"
}

# The value of --language, which comes last.
detective_language() {
  local language=cpp
  while (($#)); do
    case "$1" in
      --language) language="${2-}" ;;
      --language=*) language="${1#*=}" ;;
    esac
    shift
  done
  printf '%s\n' "$language"
}

# docs [options]: Python alone.
job_docs() {
  if ! environment_ready; then
    set_up
    set_up_done
  fi
  exec "$PYTHON" "$ROOT/docs/site/build.py" "$@"
}

# Whether a word is among others: has_word --python "$@"
has_word() {
  local word
  for word in "${@:2}"; do if [[ "$word" == "$1" ]]; then return 0; fi; done
  return 1
}

# in_python SCRIPT ARGUMENT...: a script of lessons/python, which runs programs under watch. What runs none needs no build,
# and what it refuses is refused before one.
in_python() {
  case "$1 ${2-}" in
    'exercise start' | 'exercise hint' | 'exercise reset') exec python3 "$ROOT/lessons/python/exercise.py" "${@:2}" ;;
  esac
  if type -P python3 >/dev/null; then python3 "$ROOT/lessons/python/$1.py" "${@:2}" --dry-run || exit; fi
  require_watch
  exec env "PYTHONPATH=$BUILD/python${PYTHONPATH:+:$PYTHONPATH}" "$PYTHON" "$ROOT/lessons/python/$1.py" "${@:2}"
}

# run [LESSON|all] [options]: builds only the lesson that comes first; else all. With --python, its Python programs.
job_run() {
  if has_word --python "$@"; then
    case "${1-}" in '' | all | -*) ;; *) find_lesson "$1" ;; esac
    in_python run "$@"
  fi
  local targets=(lockstep-course lessons/all)
  case "${1-}" in
    '' | all | -*) ;;
    *)
      find_lesson "$1"
      targets=(lockstep-course "$LESSON") ;;
  esac
  set_up
  build "${targets[@]}"
  run_course run "$@"
}

# Whether a command of the built program also needs lessons, built or to be built.
needs_lessons() {
  if [[ "$1" != exercise ]]; then return 1; fi
  read_exercise "${@:2}"
  [[ "$VERB" == author-check || ("$VERB" == check && -n "$EXERCISE") ]]
}

# The commands of the built program. Those that need no lesson do not wait for LibTorch, either: where it was never set
# up they have a build of their own, and before that the guide. While another call sets up or builds here, and in a clone
# that cannot be written, what is built already answers at once; and Ninja is not asked where nothing can have changed.
job_course() {
  prepare_course "$@"
  run_course "$@"
}

prepare_course() {
  if [[ "$1" == exercise ]]; then check_exercise "${@:2}"; fi
  if [[ "$1" == exercise ]] && has_word --python "$@"; then in_python exercise "${@:2}"; fi
  environment_places
  if [[ -z "$PREFIX" && ! -r "$STAMP" ]] && ! needs_lessons "$@"; then leave_torch_out; fi
  choose_compiler
  if [[ -x "$BUILD/lockstep-course" ]] && { ! clone_is_writable || set_up_elsewhere; }; then return; fi
  if ! course_is_fresh && guide_answers "$@"; then run_guide "$@"; fi
  set_up
  if ! course_is_fresh; then
    touch -- "$BUILD/course-checked.new"
    build lockstep-course
    mv -f -- "$BUILD/course-checked.new" "$BUILD/course-checked"
  fi
}

# As prepare_course, and also the environment with LibTorch: its Python makes pages of what the command says.
prepare_page() {
  if ! environment_ready; then set_up; fi
  prepare_course "$1"
  set_up_done
}

# compare A B [--json] [--html FILE]: a page is made by Python, of what --json says.
job_compare() {
  local arguments=(compare) html='' told code
  while (($#)); do
    case "$1" in
      --html)
        if (($# < 2)); then usage_error "--html wants a file."; fi
        html="$2"
        shift ;;
      --html=*) html="${1#*=}" ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  if [[ -z "$html" ]]; then job_course "${arguments[@]}"; fi
  prepare_page compare
  "$BUILD/lockstep-course" "${arguments[@]}"
  code=$?
  case "$code" in 0 | 1 | 3) ;; *) exit "$code" ;; esac
  told="$("$BUILD/lockstep-course" "${arguments[@]}" --json)"
  "$PYTHON" "$ROOT/reports/html/compare_report.py" -- "$html" <<<"$told" >&2 || exit
  exit "$code"
}

# matrix DIR...: Python asks the built program about each run, and scores the answers.
job_matrix() {
  python3 "$ROOT/evaluation/recorded_runs.py" --dry-run "$@" || exit  # a wrong word, before anything is set up
  prepare_page diagnose
  exec "$PYTHON" "$ROOT/evaluation/recorded_runs.py" --course "$BUILD/lockstep-course" "$@"
}

# Whether no source is newer than the last time that Ninja was asked.
course_is_fresh() {
  [[ -x "$BUILD/lockstep-course" && -e "$BUILD/course-checked" ]] &&
    [[ -z "$(find "$ROOT/common" "$ROOT/cmake" "$ROOT/CMakeLists.txt" "$BUILD/configured" -type f \
      -newer "$BUILD/course-checked" -print -quit 2>&1)" ]]
}

# report [options]: Python alone, so that nothing is configured or built where the environment is there.
job_report() {
  local word previous=''
  for word in "$@"; do
    case "$previous" in --out | --reports | --measured) word=-${word} ;; esac  # an option's value is no folder
    if [[ "$word" != -* ]]; then report_of_job "$@"; fi
    previous="$word"
  done
  if ! environment_ready; then
    set_up
    set_up_done
  fi
  exec "$PYTHON" "$ROOT/reports/html/report.py" "$@"
}

# report FOLDER ... [--out FILE]: of a recorded job.
report_of_job() {
  local folders=() out=() told code
  while (($#)); do
    case "$1" in
      --out)
        if (($# < 2)); then usage_error "--out wants a file."; fi
        out=("--out=$2")
        shift ;;
      --out=*) out=("$1") ;;
      -*) usage_error "the report of a job takes folders and --out FILE: $1" ;;
      *) folders+=("$1") ;;
    esac
    shift
  done
  prepare_page diagnose
  told="$("$BUILD/lockstep-course" diagnose --json --pictures "${folders[@]}")"
  code=$?
  if [[ -z "$told" ]]; then exit "$code"; fi
  "$PYTHON" "$ROOT/reports/html/job_report.py" ${out[@]+"${out[@]}"} -- "${folders[0]}" <<<"$told"
  exit
}

run_course() {
  set_up_done
  exec "$BUILD/lockstep-course" "$@"
}

# test [--tier quick] [ctest arguments], or test --tier full [phase ...]
job_test() {
  local tier=quick arguments=()
  while (($#)); do
    case "$1" in
      --tier)
        if (($# < 2)); then usage_error "--tier wants quick or full."; fi
        tier="$2"
        shift ;;
      --tier=*) tier="${1#*=}" ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  case "$tier" in
    quick) arguments=(-LE '^full$' ${arguments[@]+"${arguments[@]}"}) ;;
    full)
      set_up
      set_up_done
      exec "${PYTHON:-python3}" "$ROOT/tests/full_tier.py" ${arguments[@]+"${arguments[@]}"} ;;
    *) usage_error "--tier is quick or full, not \"$tier\"." ;;
  esac
  set_up
  build_tests ${arguments[@]+"${arguments[@]}"}
  set_up_done
  mkdir -p -- "$ROOT/reports/out" || fail "no permission to write in $ROOT/reports/out."
  # Two more than there are cores: many tests mostly wait for ranks that do not come.
  exec "$CMAKE_BIN/ctest" --test-dir "$BUILD" --output-on-failure --no-tests=error -j"$(($(nproc 2>/dev/null || echo 2) + 2))" \
    --output-log "$ROOT/reports/out/test-${BUILD##*/}.log" ${arguments[@]+"${arguments[@]}"}
}

# One label needs the folders whose tests have it, and the program behind ./lockstep; anything else needs everything.
build_tests() {
  local word previous="" label="" labels=0 targets=()
  for word in "$@"; do
    if [[ "$previous" == -L ]]; then label="$word" labels=$((labels + 1)); fi
    if [[ "$word" == -L?* && "$word" != -LE ]]; then label="${word#-L}" labels=$((labels + 1)); fi
    previous="$word"
  done
  if ((labels == 1)) && [[ "$label" =~ ^[a-z]+$ ]]; then
    mapfile -t targets < <(cd "$ROOT" && grep -lE "LABELS? \"?$label\b" {tests,evaluation}/*/CMakeLists.txt tests/*/*.cmake python/CMakeLists.txt 2>/dev/null |
      sed 's|/[^/]*$|/all|' | sort -u)
    if ((${#targets[@]})); then targets+=(lockstep-course); fi
  fi
  build ${targets[@]+"${targets[@]}"}
}

# The script of a benchmark, which may be one of the evaluation's; nothing where it is a program.
bench_script() {
  local script
  for script in "$ROOT/benchmarks/$1.py" "$ROOT/evaluation/silence_cost/$1.py"; do
    if [[ -e "$script" ]]; then printf '%s\n' "$script"; return; fi
  done
}

# bench [NAME]: a script, else the built program NAME.
job_bench() {
  local name="${1-}" file script
  if [[ -z "$name" || "$name" == -* ]]; then
    echo "Benchmarks (./lockstep bench NAME):"
    for file in "$ROOT"/benchmarks/*.py "$ROOT"/benchmarks/*.cpp "$ROOT"/evaluation/silence_cost/*_cost.py; do
      file="${file##*/}"
      # A rank's side of a benchmark is no benchmark of its own.
      case "$file" in *'*'* | *_rank.*) ;; *) printf '  %s\n' "${file%.*}" ;; esac
    done | sort -u
    return
  fi
  shift
  set_up
  export LOCKSTEP_BUILD_DIR="$BUILD"
  script="$(bench_script "$name")"
  if [[ -z "$script" && ! -e "$ROOT/benchmarks/$name.cpp" ]]; then
    usage_error "there is no benchmark \"$name\"; ./lockstep bench lists them."
  fi
  # What wants a GPU says so first, and needs no lesson.
  case "$name" in
    build_times) ;;  # it builds in a clone of its own
    ddp_step | gpu_step | silence_cost | step_costs) build "$name" ;;
    watch_overhead) build _extension ;;
    bucket_bandwidth)
      if ! grep -q '^build bucket_bandwidth:' "$BUILD/build.ninja"; then
        fail "bucket_bandwidth measures kernels, and none are built here." "./lockstep doctor says which nvcc there is."
      fi
      build bucket_bandwidth ;;
    *) build benchmarks/all lessons/all ;;
  esac
  set_up_done
  if [[ -n "$script" ]]; then
    # A script that drives a built program of its own name gets it first.
    for file in "$BUILD/evaluation/$name" "$BUILD/benchmarks/$name"; do
      if [[ -x "$file" ]]; then set -- "$file" "$@"; break; fi
    done
    exec "$PYTHON" "$script" "$@"
  fi
  exec "$BUILD/benchmarks/$name" "$@"
}
