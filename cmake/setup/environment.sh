# The Python environment that holds LibTorch, CMake, Ninja and what the tests compare with.
#
# Its stamp, the list of what was installed, is written last: an environment without one was interrupted
# and is made again. Nothing here starts a process when the environment is ready.

# Sets REQUIREMENTS: the lines of requirements.txt, with the torch version that was asked for.
read_requirements() {
  local line
  REQUIREMENTS=""
  while IFS= read -r line; do
    case "$line" in
      '' | '#'*) continue ;;
      cmake==* | ninja==*) ;;
      torch==*)
        if [[ -n "$PREFIX$TORCH_FREE" ]]; then continue; fi
        line="torch==$TORCH" ;;
      *) if [[ -n "$TORCH_FREE" ]]; then continue; fi ;;
    esac
    REQUIREMENTS+="$line"$'\n'
  done <"$ROOT/requirements.txt"
}

# Sets the places inside the environment. Programs are named themselves, not their Python wrappers.
environment_places() {
  local site
  for site in "$ENVIRONMENT"/lib/python3*/site-packages; do SITE="$site"; done
  PYTHON="$ENVIRONMENT/bin/python"
  CMAKE_BIN="$SITE/cmake/data/bin"
  NINJA="$ENVIRONMENT/bin/ninja"
  TORCH_ROOT="${PREFIX:-$SITE/torch}"
  STAMP="$ENVIRONMENT/.lockstep-stamp"
}

environment_whole() {
  environment_places
  [[ -x "$PYTHON" && -x "$CMAKE_BIN/cmake" && -x "$CMAKE_BIN/ctest" && -x "$NINJA" ]] &&
    [[ -n "$TORCH_FREE" || -e "$TORCH_ROOT/lib/libtorch_cpu.so" ]]
}

environment_ready() {
  read_requirements
  environment_whole && [[ -r "$STAMP" && "$(<"$STAMP")"$'\n' == "$REQUIREMENTS" ]]
}

# A Python that can make environments: LOCKSTEP_PYTHON, else the first on PATH, else Debian's.
find_python() {
  local candidate
  for candidate in ${LOCKSTEP_PYTHON:+"$LOCKSTEP_PYTHON"} python3 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1 </dev/null; then
      BASE_PYTHON="$candidate"
      return 0
    fi
    if [[ -n "${LOCKSTEP_PYTHON:-}" ]]; then return 1; fi
  done
  return 1
}

set_up_environment() {
  local log="$STATE/log/pip.log"
  find_python || fail "there is no Python 3.11 or newer that can make virtual environments." \
    "Install python3 and python3-venv, or name one: LOCKSTEP_PYTHON=/path/to/python3."
  if [[ -r "$STAMP" ]] && environment_whole; then
    say "requirements.txt has changed: bringing ${ENVIRONMENT#"$ROOT"/} up to date"
    rm -f -- "$STAMP"
  else
    if [[ -e "$ENVIRONMENT" ]]; then
      say "${ENVIRONMENT#"$ROOT"/} was left half made: making it again"
      rm -rf -- "$ENVIRONMENT"
    fi
    check_space
    say "making ${ENVIRONMENT#"$ROOT"/} with $BASE_PYTHON"
    logged "$log" '^$' "$BASE_PYTHON" -m venv "$ENVIRONMENT" || environment_failed "$log"
  fi
  printf '%s' "$REQUIREMENTS" >"$ENVIRONMENT/requirements.txt" || environment_failed "$log"
  if [[ -z "$PREFIX$TORCH_FREE" ]]; then say "downloading LibTorch $TORCH and tools (about 2.5 GB; 4.7 GB on disk)"; fi
  install_by_uv "$log.uv" || install_by_pip "$log" -r "$ENVIRONMENT/requirements.txt" || environment_failed "$log"
  environment_whole || environment_failed "$log"
  { printf '%s' "$REQUIREMENTS" >"$STAMP.new" && mv -- "$STAMP.new" "$STAMP"; } || environment_failed "$log"
}

# install_by_pip LOG ARGUMENT...
install_by_pip() {
  logged "$1" '^ *(Downloading .*[0-9] [GM]B|Installing collected)' \
    "$PYTHON" -m pip install --disable-pip-version-check --no-input --progress-bar off "${@:2}"
}

# uv downloads, unpacks and compiles side by side, in half of pip's time. It reads few of pip's settings: where it fails, for
# whatever reason, pip goes on, and says what is wrong.
install_by_uv() {
  local line version="" own_cache=""
  while IFS= read -r line; do
    case "$line" in uv==*) version="$line" ;; esac
  done <<<"$REQUIREMENTS"
  if [[ -z "$version" ]] || ! install_by_pip "$1" "$version"; then return 1; fi
  # What nobody else will use is not kept; the environment has links to its files, or copies.
  if [[ -n "${PIP_NO_CACHE_DIR:-}" ]]; then own_cache="$STATE/uv"; fi
  logged "$1" '^ *(Downloading|Downloaded|Prepared|Installed)' \
    env ${own_cache:+"UV_CACHE_DIR=$own_cache"} ${PIP_INDEX_URL:+"UV_DEFAULT_INDEX=$PIP_INDEX_URL"} \
    "$ENVIRONMENT/bin/uv" pip install --python "$PYTHON" --link-mode hardlink --compile-bytecode -r "$ENVIRONMENT/requirements.txt"
  local code=$?
  if [[ -n "$own_cache" ]]; then rm -rf -- "$own_cache"; fi
  return "$code"
}

check_space() {
  local need=7000 free
  if [[ -n "$PREFIX$TORCH_FREE" ]]; then need=500; fi
  free="$(free_megabytes)"
  if [[ "$free" =~ ^[0-9]+$ ]] && ((free < need)); then
    fail "the disk has too little space: $free MB free in $STATE, about $need MB needed." \
      "Free some space, or put the clone on a larger disk, then call again."
  fi
}

free_megabytes() { df -Pm -- "$STATE" 2>/dev/null | awk 'NR == 2 { print $4 }'; }

environment_failed() {
  local log="$1" free
  free="$(free_megabytes)"
  if no_space "$log" || { [[ "$free" =~ ^[0-9]+$ ]] && ((free < 50)); }; then
    fail "the disk is full: ${ENVIRONMENT#"$ROOT"/} could not be finished." \
      "Free some space (about 7 GB are needed), then call again: it starts over by itself."
  elif no_network "$log"; then
    fail "a download failed: pip could not fetch what requirements.txt names (log: $log)." \
      "Check the network (pip follows PIP_INDEX_URL and https_proxy), then call again."
  elif grep -q 'No matching distribution' -- "$log"; then
    show_end_of "$log" 3
    fail "pip found no package for this version and this Python ($BASE_PYTHON; log: $log)." \
      "Check --torch, or name another Python (3.11 to 3.14): LOCKSTEP_PYTHON=/path/to/python3."
  fi
  show_end_of "$log"
  fail "${ENVIRONMENT#"$ROOT"/} could not be made (log: $log)." "The next call starts over."
}
