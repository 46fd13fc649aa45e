# The names of commands, lessons and pitfalls: what is none of them is refused before anything is set up, as the built
# program refuses it (course/lessons.cpp, course/run_command.cpp).

# nearest WORD NAME...: "; the nearest: NAME" where one is much like the word; else nothing.
nearest() {
  if type -P python3 >/dev/null; then
    python3 -c 'import difflib, sys; print(*map("; the nearest: {}".format, difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1)))' "$@"
  fi
}

refuse_command() {
  local commands
  mapfile -t commands < <(usage | sed -n 's|^  \./lockstep \([a-z]*\).*|\1|p')
  overview >&2
  printf '\nlockstep: there is no command "%s"%s.\n' "$1" "$(nearest "$1" "${commands[@]}")" >&2
  exit 2
}

# Sets LESSON to the folder of 05_set_epoch, 05, 5 or set_epoch.
find_lesson() {
  if is_lesson "$1"; then return; fi
  if is_pitfall "$1"; then wrong_use "\"$1\" is a variant: ./lockstep run ${LESSON%%_*} --variant $1"; fi
  refuse_lesson "$1"
}

is_lesson() {
  local folder
  for folder in "$ROOT"/lessons/[0-9][0-9]_*/; do
    folder="${folder%/}"
    LESSON="${folder##*/}"
    case "$1" in "$LESSON" | "${LESSON%%_*}" | "${LESSON#*_}") return 0 ;; esac
    if [[ "0$1" == "${LESSON%%_*}" ]]; then return 0; fi
  done
  return 1
}

# Sets LESSON to the one that it is of.
is_pitfall() {
  local page
  for page in "$ROOT"/lessons/[0-9][0-9]_*/pitfalls/*.md; do
    LESSON="${page%/pitfalls/*}"
    LESSON="${LESSON##*/}"
    if [[ "${page##*/}" == "$1.md" ]]; then return 0; fi
  done
  return 1
}

refuse_lesson() {
  local folder names=() all=""
  for folder in "$ROOT"/lessons/[0-9][0-9]_*/; do
    folder="${folder%/}"
    folder="${folder##*/}"
    names+=("${folder#*_}")
    all+=$'\n'"  $folder"
  done
  wrong_use "there is no lesson \"$1\"$(nearest "${1#[0-9][0-9]_}" "${names[@]}"); there are:$all"
}

# Sets VERB and EXERCISE, the first two words of exercise [--folder DIR] VERB NAME that are no options.
read_exercise() {
  local words=()
  while (($#)); do
    case "$1" in
      --folder) if (($# > 1)); then shift; fi ;;
      -*) ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  VERB="${words[0]-}"
  EXERCISE="${words[1]-}"
}

# An exercise is named by its lesson or by its pitfall; what is neither is refused.
check_exercise() {
  read_exercise "$@"
  case "$VERB" in start | hint | check | prove | reset) ;; *) return ;; esac
  if [[ -z "$EXERCISE" ]] || is_lesson "$EXERCISE" || is_pitfall "$EXERCISE"; then return; fi
  case "$EXERCISE" in [0-9]*) refuse_lesson "$EXERCISE" ;; esac
  local pages=("$ROOT"/lessons/[0-9][0-9]_*/pitfalls/*.md) names="./lockstep list names the lessons, ./lockstep explain the pitfalls"
  pages=("${pages[@]##*/}")
  wrong_use "there is no lesson and no pitfall \"$EXERCISE\"$(nearest "$EXERCISE" "${pages[@]%.md}"). $names"
}
