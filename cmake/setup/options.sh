# The options of set-up, wherever they stand in the line, and the places that follow from them.

DEFAULT_TORCH="" # the version that requirements.txt pins
while IFS= read -r line; do
  case "$line" in torch==*) DEFAULT_TORCH="${line#torch==}" ;; esac
done <"$ROOT/requirements.txt"

# Sets TORCH, PREFIX, COMPILER (empty: choose) and REST, the line without them.
parse_options() {
  TORCH="${LOCKSTEP_TORCH:-}"
  PREFIX="${LOCKSTEP_TORCH_PREFIX:-}"
  COMPILER="${LOCKSTEP_COMPILER:-}"
  REST=()
  while (($#)); do
    case "$1" in
      --torch | --prefix | --compiler)
        if (($# < 2)) || [[ -z "$2" ]]; then usage_error "$1 wants a value."; fi
        set_option "$1" "$2"
        shift ;;
      --torch=* | --prefix=* | --compiler=*) set_option "${1%%=*}" "${1#*=}" ;;
      --) REST+=("$@"); break ;;
      *) REST+=("$1") ;;
    esac
    shift
  done
  case "$COMPILER" in
    '') ;;
    clang | clang++) COMPILER=clang ;;
    g++ | gcc) COMPILER=gcc ;;
    *) usage_error "--compiler is clang or g++, not \"$COMPILER\"." ;;
  esac
  if [[ -n "$TORCH" && ! "$TORCH" =~ ^[0-9]+\.[0-9]+\.[0-9]+([a-z0-9.]*)$ ]]; then
    usage_error "--torch wants a version such as $DEFAULT_TORCH, not \"$TORCH\"."
  fi
  if [[ -n "$PREFIX" ]]; then
    if [[ -n "$TORCH" ]]; then usage_error "--torch and --prefix exclude each other."; fi
    check_prefix
  fi
  TORCH="${TORCH:-$DEFAULT_TORCH}"
  TORCH_FREE="" # not asked for here: leave_torch_out
  # A user's own LibTorch needs the build tools only.
  ENVIRONMENT="$STATE/torch-$TORCH"
  if [[ -n "$PREFIX" ]]; then ENVIRONMENT="$STATE/tools"; fi
}

# What follows sets up and builds the program behind ./lockstep alone, in places of its own: seconds and 0.1 GB of
# tools, where LibTorch takes minutes and 4.7 GB.
leave_torch_out() {
  TORCH_FREE=yes
  ENVIRONMENT="$STATE/course"
}

set_option() {
  case "$1" in
    --torch) TORCH="$2" ;;
    --prefix) PREFIX="$2" ;;
    --compiler) COMPILER="$2" ;;
  esac
}

check_prefix() {
  if [[ ! -d "$PREFIX" ]]; then fail "there is no folder \"$PREFIX\" (--prefix or LOCKSTEP_TORCH_PREFIX)."; fi
  PREFIX="$(cd -- "$PREFIX" && pwd)"
  if [[ ! -e "$PREFIX/lib/libtorch_cpu.so" || ! -d "$PREFIX/include/torch" ]]; then
    fail "\"$PREFIX\" is no LibTorch: include/torch and lib/libtorch_cpu.so are not both in it." \
      "Name the folder that holds include/ and lib/: of an unpacked libtorch, or site-packages/torch."
  fi
}
