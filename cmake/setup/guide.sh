# The first answer in a new clone: list and explain are compiled by themselves, in seconds, where the program behind
# ./lockstep is not built yet. No lock, no CMake, no Python: what is ready is moved into its place.

GUIDE="$ROOT/build/guide/lockstep-guide"

# COMMAND [ARGUMENT]: whether it is one of the guide's.
guide_answers() {
  case "$1 ${2-}" in
    'list ' | 'list -'* | 'explain '*) return 0 ;;
    *) return 1 ;;
  esac
}

# COMMAND ARGUMENT...
run_guide() {
  if ! guide_is_fresh; then build_guide; fi
  exec "$GUIDE" "$@"
}

guide_is_fresh() {
  [[ -x "$GUIDE" && -z "$(find "$ROOT"/common/lockstep/{base,course,report/page.cpp,diagnose/{nearest,equations}.cpp} -name '*.[ch]*' -newer "$GUIDE" -print -quit 2>&1)" ]]
}

build_guide() {
  local log="$STATE/log/guide.log" made="$GUIDE.$$"
  mkdir -p -- "$STATE/log" "${GUIDE%/*}" 2>/dev/null || fail "no permission to write in $ROOT." \
    "Clone the repository to a folder of your own."
  set_up_group guide
  choose_compiler
  say "first call here: compiling what answers, in some seconds"
  if ! "$CXX" -std=c++20 -O0 -I "$ROOT/common" "-DLOCKSTEP_SOURCE_DIR=\"$ROOT\"" \
    "$ROOT/common/lockstep/course/guide.cpp" -o "$made" >"$log" 2>&1; then
    rm -f -- "$made"
    show_end_of "$log"
    fail "what answers could not be compiled (log: $log)."
  fi
  mv -f -- "$made" "$GUIDE"
}
