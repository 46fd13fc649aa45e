#!/usr/bin/env bash
# How long a build takes: everything from nothing, and one lesson after an edit until its program has
# answered. Without ccache. Run it by  ./lockstep bench build_times [LESSON]  on an otherwise idle machine;
# the compiler is that of the build folder (--compiler). Writes reports/out/build_times.json and prints it.
set -euo pipefail
root="$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
lesson="${1:-05_set_epoch}"
if [[ -z "${LOCKSTEP_BUILD_DIR:-}" ]]; then
  echo "Run this by  ./lockstep bench build_times  (it says which build folder to take settings from)." >&2
  exit 2
fi
source_file="$root/lessons/$lesson/lesson.cpp"
if [[ ! -e "$source_file" ]]; then
  echo "There is no lesson \"$lesson\" in $root/lessons." >&2
  exit 2
fi

cached() { sed -n "s/^$1:[A-Z]*=//p" "$LOCKSTEP_BUILD_DIR/CMakeCache.txt"; }
cmake="$(cached CMAKE_COMMAND)"
ninja="$(cached CMAKE_MAKE_PROGRAM)"
folder="$root/build/build-times"
log="$root/reports/out/build_times.log"
export CCACHE_DISABLE=1
mkdir -p "$root/reports/out"
rm -rf "$folder"
trap 'rm -rf "$folder"' EXIT

seconds_of() { # COMMAND...: its wall seconds, its output in the log
  local start end
  start="$(date +%s%N)"
  "$@" >>"$log" 2>&1 </dev/null || { tail -n 20 "$log" >&2; exit 3; }
  end="$(date +%s%N)"
  awk -v ns="$((end - start))" 'BEGIN { printf "%.2f", ns / 1e9 }'
}

: >"$log"
configure_s="$(seconds_of "$cmake" -S "$root" -B "$folder" -G Ninja "-DCMAKE_MAKE_PROGRAM=$ninja" \
  "-DCMAKE_C_COMPILER=$(cached CMAKE_C_COMPILER)" "-DCMAKE_CXX_COMPILER=$(cached CMAKE_CXX_COMPILER)" \
  "-DCMAKE_PREFIX_PATH=$(cached CMAKE_PREFIX_PATH)" "-DLOCKSTEP_PYTHON=$(cached LOCKSTEP_PYTHON)")"
echo "configured in $configure_s s; building everything" >&2
clean_s="$(seconds_of "$ninja" -C "$folder")"
files="$(grep -c '"file":' "$folder/compile_commands.json")"

# The middle of three: a touched source, built and answering --help.
rebuild() { "$ninja" -C "$folder" "$lesson" && "$folder/bin/$lesson" --help; }
edits=()
for _ in 1 2 3; do
  touch "$source_file"
  edits+=("$(seconds_of rebuild)")
done
edit_s="$(printf '%s\n' "${edits[@]}" | sort -n | sed -n 2p)"

compiler="$("$(cached CMAKE_CXX_COMPILER)" --version | head -n 1)"
cat <<JSON | tee "$root/reports/out/build_times.json"
{
  "benchmark": "build_times",
  "date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "revision": "$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)",
  "compiler": "$compiler",
  "cores": $(nproc),
  "files": $files,
  "configure_s": $configure_s,
  "clean_build_s": $clean_s,
  "edited_lesson": "$lesson",
  "edit_to_runnable_s": $edit_s,
  "edit_to_runnable_all_s": [$(IFS=,; echo "${edits[*]}")]
}
JSON
