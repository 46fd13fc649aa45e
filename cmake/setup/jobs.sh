# The commands.

# setup [--launchers]
job_setup() {
  local launchers=""
  if [[ "${1-}" == --launchers ]]; then
    launchers=yes
    shift
  fi
  if (($#)); then usage_error "setup takes --launchers, or nothing: $1"; fi
  set_up
  if [[ "$launchers" ]]; then set_up_launchers; fi
  say "ready: ${BUILD#"$ROOT"/}"
}

job_build() {
  if (($#)); then usage_error "build takes no argument: $1"; fi
  set_up
  build
  say "built: ${BUILD#"$ROOT"/}"
}

# run [LESSON|all] [options]: builds only the lesson that comes first, by name or number; else all.
job_run() {
  local targets=(lockstep-course lessons/all) lesson
  case "${1-}" in
    -h | --help) targets=(lockstep-course) ;;
    [0-9]*)
      for lesson in "$ROOT/lessons/$1"/ "$ROOT/lessons/$1"_*/; do
        lesson="${lesson%/}"
        if [[ -d "$lesson" ]]; then targets=(lockstep-course "${lesson##*/}"); fi
      done ;;
  esac
  set_up
  build "${targets[@]}"
  run_course run "$@"
}

# The commands of the built program that need no lesson built. While another call sets up or builds here,
# what is built already answers at once.
job_course() {
  choose_compiler
  if [[ -x "$BUILD/lockstep-course" ]] && set_up_elsewhere; then run_course "$@"; fi
  set_up
  build lockstep-course
  run_course "$@"
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
  exec "$CMAKE_BIN/ctest" --test-dir "$BUILD" --output-on-failure --no-tests=error -j2 \
    --output-log "$ROOT/reports/out/test-${BUILD##*/}.log" ${arguments[@]+"${arguments[@]}"}
}

# One label needs the tests of its own folder only; anything else needs everything.
build_tests() {
  local word previous="" label="" labels=0
  for word in "$@"; do
    if [[ "$previous" == -L ]]; then label="$word" labels=$((labels + 1)); fi
    if [[ "$word" == -L?* && "$word" != -LE ]]; then label="${word#-L}" labels=$((labels + 1)); fi
    previous="$word"
  done
  if ((labels == 1)) && [[ "$label" =~ ^[a-z]+$ && -e "$ROOT/tests/$label/CMakeLists.txt" ]]; then
    build "tests/$label/all"
  else
    build
  fi
}

# bench [NAME]: benchmarks/NAME.sh or NAME.py, else the built program NAME.
job_bench() {
  local name="${1-}" file
  if [[ -z "$name" || "$name" == -* ]]; then
    echo "Benchmarks (./lockstep bench NAME):"
    for file in "$ROOT"/benchmarks/*.sh "$ROOT"/benchmarks/*.py "$ROOT"/benchmarks/*.cpp; do
      file="${file##*/}"
      # A rank's side of a benchmark is no benchmark of its own.
      case "$file" in *'*'* | *_rank.*) ;; *) printf '  %s\n' "${file%.*}" ;; esac
    done | sort -u
    return
  fi
  shift
  set_up
  export LOCKSTEP_BUILD_DIR="$BUILD"
  if [[ -e "$ROOT/benchmarks/$name.sh" ]]; then
    set_up_done
    exec bash "$ROOT/benchmarks/$name.sh" "$@"
  fi
  if [[ ! -e "$ROOT/benchmarks/$name.py" && ! -e "$ROOT/benchmarks/$name.cpp" ]]; then
    usage_error "there is no benchmark \"$name\"; ./lockstep bench lists them."
  fi
  build benchmarks/all lessons/all
  set_up_done
  if [[ -e "$ROOT/benchmarks/$name.py" ]]; then
    # A script that drives a built program of its own name gets it first.
    if [[ -e "$BUILD/benchmarks/$name" ]]; then set -- "$BUILD/benchmarks/$name" "$@"; fi
    exec "$PYTHON" "$ROOT/benchmarks/$name.py" "$@"
  fi
  exec "$BUILD/benchmarks/$name" "$@"
}
