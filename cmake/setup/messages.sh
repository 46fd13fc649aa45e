# Progress and failures, on stderr. Exit codes: 2 usage, 3 could not run.

# fill COLUMN TEXT: to 80 columns, from a COLUMN that the line has reached, under which its words then hang. What has no
# space in it, a path, may be longer.
fill() {
  local column="$1" text="$2" room=$((80 - $1)) line
  while ((${#text} > room)) && [[ "$text" == *' '* ]]; do
    line="${text:0:room + 1}"
    if [[ "$line" == *' '* ]]; then line="${line% *}"; else line="${text%% *}"; fi
    printf '%s\n%*s' "$line" "$column" ''
    text="${text:${#line} + 1}"
  done
  printf '%s\n' "$text"
}

say() {
  local text="$*" indent
  indent="${text%%[! ]*}"
  printf 'lockstep: %s' "$indent" >&2
  fill $((10 + ${#indent})) "${text#"$indent"}" >&2
}

# fail WHAT [WHAT TO DO]...
fail() {
  printf 'lockstep: error: %s\n' "$1" >&2
  shift
  if (($#)); then printf '          %s\n' "$@" >&2; fi
  exit 3
}

usage_error() {
  printf 'lockstep: %s\n          ./lockstep --help shows what there is.\n' "$1" >&2
  exit 2
}

# In the built program's own words.
wrong_use() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

# The last lines of a log, indented: what a stranger needs to ask for help with.
show_end_of() { tail -n "${2:-12}" -- "$1" 2>/dev/null | sed 's/^/    /' >&2; }

no_space() { grep -qiE 'no space left on device|errno 28|enough free space' -- "$1"; }

no_network() {
  grep -qiE 'failed to establish a new connection|name resolution|could not resolve|connection (refused|reset|timed out|broken)|network is unreachable|read timed out|max retries|proxyerror|sslerror|unable to fetch|failed to fetch|incompleteread' -- "$1"
}

# Runs a command with its output in a log; each line that matches a pattern is shown as it comes.
# logged LOG PATTERN COMMAND...
logged() {
  local log="$1" pattern="$2" line
  shift 2
  # A full disk must not make this loop complain: what failed is found out afterwards.
  "$@" </dev/null 2>&1 | while IFS= read -r line; do
    printf '%s\n' "$line" 2>/dev/null
    if [[ "$line" =~ $pattern ]]; then
      line="${line#"${line%%[! ]*}"}"
      line="${line/-[cp][py][0-9]*.whl/}" # a wheel's tags say nothing to a reader
      case "$line" in
        'Installing collected packages'*)
          line="unpacking and installing"
          if [[ -z "$PREFIX$TORCH_FREE" ]]; then line+=": minutes in which nothing is printed"; fi ;;
      esac
      say "  $line"
    fi
  done >"$log"
}
