# Configure and build. CMake is started only when something about the configuration has changed; else
# Ninja alone finds out that there is nothing to do.

# In a folder of such a name Python makes no virtual environment (:), or CMake builds nothing.
check_folder() {
  local letter
  for letter in ':' ';' '"' '\' '#' '[' ']' '|' '<' '>' $'\n'; do
    if [[ "$ROOT" == *"$letter"* ]]; then
      fail "the path of this folder has a \"${letter/$'\n'/line break}\", with which Python and CMake cannot work: $ROOT" \
        "Move the clone to a folder without it, and call again. Spaces and single quotes are fine."
    fi
  done
}

# Compilers' and downloads' caches lie in the home directory; where that cannot be written, beside the environments.
find_caches() {
  local caches="${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}}"
  if [[ -n "$caches" ]] && mkdir -p -- "$caches" 2>/dev/null && [[ -w "$caches" ]]; then return; fi
  export XDG_CACHE_HOME="$STATE/cache" PIP_NO_CACHE_DIR=1
}

# Whether this clone can be written: not one that is read-only, or another user's.
clone_is_writable() {
  mkdir -p -- "$STATE/log" "$ROOT/build" 2>/dev/null
  [[ -w "$STATE/log" && -w "$ROOT/build" ]]
}

# Takes the lock (two calls must not set up at once), then makes everything up to a configured build
# folder. The lock is let go by set_up_done or with the process.
set_up() {
  if ! clone_is_writable; then
    fail "no permission to write in $ROOT." "Clone the repository to a folder of your own."
  fi
  find_caches
  { exec 9>>"$STATE/lock"; } 2>/dev/null || fail "no permission to write $STATE/lock."
  if ! flock -n 9; then
    read_lock_holder
    say "another ./lockstep is setting up or building here: waiting for it"
    if [[ -n "$LOCK_HOLDER" ]]; then say "  $LOCK_HOLDER"; fi
    flock 9
  fi
  printf '%s %(%F %T)T\n' "$$" -1 >"$STATE/lock"
  if environment_ready; then
    set_up_packages
  else
    say_what_will_be_done
    set_up_packages with-python
    set_up_environment
  fi
  choose_compiler
  configure
}

set_up_done() { exec 9>&-; }

# What a first call will do, before it does it. Minutes are of 2 cores and a fast network.
say_what_will_be_done() {
  if [[ -n "$TORCH_FREE" ]]; then
    say "first call here: the program that answers is built, once, in about a minute." \
      "It needs no LibTorch: that is set up by the first run, test, build or exercise check."
  elif [[ -z "$PREFIX" && ! -r "$STAMP" ]]; then
    say "first call here: first LibTorch is set up, in about 2 minutes. Then the code is compiled:" \
      "about 3 minutes for one lesson, longer for everything. Later calls compile only what has changed."
  fi
}

# Sets LOCK_HOLDER: who holds the lock, as far as that is known.
read_lock_holder() {
  local process day time
  LOCK_HOLDER=""
  read -r process day time <"$STATE/lock" 2>/dev/null
  if [[ -n "$time" ]]; then LOCK_HOLDER="process $process, since $day $time"; fi
}

# Whether another call holds the lock.
set_up_elsewhere() {
  { exec 9>>"$STATE/lock"; } 2>/dev/null && ! flock -n 9
}

# Sets COMPILER (clang or gcc), CC, CXX and BUILD, the build folder.
choose_compiler() {
  if [[ -z "$COMPILER" ]]; then
    COMPILER=gcc
    if found command:clang++; then COMPILER=clang; fi
  fi
  if [[ "$COMPILER" == clang ]]; then CC=clang CXX=clang++; else CC=gcc CXX=g++; fi
  BUILD="$ROOT/build/$COMPILER-$TORCH"
  if [[ -n "$PREFIX" ]]; then BUILD="$ROOT/build/$COMPILER-prefix"; fi
  if [[ -n "$TORCH_FREE" ]]; then BUILD="$ROOT/build/$COMPILER-course"; fi
  WERROR=OFF
  case "${LOCKSTEP_WERROR:-}" in 1 | ON | on) WERROR=ON BUILD+=-strict ;; esac
  UNITY=ON
  case "${LOCKSTEP_UNITY:-}" in 0 | OFF | off) UNITY=OFF BUILD+=-single ;; esac
}

configure() {
  local log="$STATE/log/configure.log" python=""
  if [[ -z "$PREFIX$TORCH_FREE" ]]; then python="$PYTHON"; fi
  local arguments=(-S "$ROOT" -B "$BUILD" -G Ninja
    "-DCMAKE_MAKE_PROGRAM=$NINJA" "-DCMAKE_C_COMPILER=$CC" "-DCMAKE_CXX_COMPILER=$CXX"
    "-DCMAKE_PREFIX_PATH=$TORCH_ROOT" "-DLOCKSTEP_WERROR=$WERROR" "-DLOCKSTEP_PYTHON=$python" "-DLOCKSTEP_UNITY=$UNITY")
  if [[ -n "$TORCH_FREE" ]]; then arguments+=(-DLOCKSTEP_TORCH=OFF -DLOCKSTEP_OPTIMIZE=-O0); fi
  if [[ -e "$BUILD/build.ninja" && -r "$BUILD/configured" && "$(<"$BUILD/configured")" == "${arguments[*]}" ]]; then
    return
  fi
  command -v "$CXX" >/dev/null || fail "the compiler $CXX is missing." "Install it, or choose the other with --compiler."
  say "configuring ${BUILD#"$ROOT"/}"
  if ! logged "$log" '^-- (The CXX compiler|LibTorch)' "$CMAKE_BIN/cmake" --fresh "${arguments[@]}"; then
    show_end_of "$log" 20
    fail "configuring failed (log: $log)."
  fi
  printf '%s\n' "${arguments[*]}" >"$BUILD/configured"
}

# build TARGET...: everything when no target is named.
build() {
  local jobs_option=() memory_kb cores
  # A file that includes torch takes up to 1.5 GB to compile; Ninja looks at the cores only.
  memory_kb="$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo 2>/dev/null)"
  cores="$(nproc 2>/dev/null || echo 2)"
  if [[ -n "$memory_kb" ]] && ((memory_kb / 1500000 < cores)); then
    jobs_option=(-j "$((memory_kb / 1500000 > 0 ? memory_kb / 1500000 : 1))")
  fi
  "$NINJA" -C "$BUILD" ${jobs_option[@]+"${jobs_option[@]}"} "$@" </dev/null 2>&1 | build_progress
  if ((PIPESTATUS[0] != 0)); then
    if [[ "$(free_megabytes)" =~ ^[0-9]{1,2}$ ]]; then fail "the disk is full: the build could not be finished."; fi
    fail "the build failed: see the compiler's messages above (folder ${BUILD#"$ROOT"/})."
  fi
}

# On a terminal one line that is written over; elsewhere at most one in ten seconds.
build_progress() {
  local line last=-10 open=""
  while IFS= read -r line; do
    case "$line" in
      'ninja: no work to do.' | 'ninja: Entering directory'* | *'Re-checking globbed directories'*) ;;
      '['[0-9]*'/'*)
        if [[ -t 2 ]]; then
          printf '\r\033[K%s' "${line:0:${COLUMNS:-80}}" >&2
          open=1
        elif ((SECONDS - last >= 10)); then
          last=$SECONDS
          say "building $line"
        fi ;;
      *) printf '%s%s\n' "${open:+$'\n'}" "$line" >&2; open="" ;;
    esac
  done
  if [[ -n "$open" ]]; then printf '\r\033[K' >&2; fi
}
