# What is here, what is missing, what would be used. Reads only; works on a bare machine.

line() { # STATE NAME TEXT
  local colour="" plain="" name
  printf -v name '%-18s ' "$2"
  if [[ -t 1 && -z "${NO_COLOR:-}" && "${TERM:-dumb}" != dumb ]]; then
    plain=$'\033[0m'
    case "$1" in
      ok) colour=$'\033[32m' ;;
      missing) colour=$'\033[31m' ;;
      *) colour=$'\033[33m' ;;
    esac
  fi
  printf '%s%-8s%s  %s' "$colour" "$1" "$plain" "$name"
  fill $((10 + ${#name})) "$3"
}

job_doctor() {
  if (($#)); then usage_error "doctor takes no argument: $1"; fi
  local able=yes set_up_runs=""
  if set_up_running; then set_up_runs=yes; fi
  doctor_environment
  doctor_packages
  doctor_gpus
  doctor_machine
  doctor_build
  doctor_set_up
  echo
  if [[ "$able" == yes ]]; then
    echo "The course can run:  ./lockstep run all"
    return 0
  fi
  if [[ -n "$set_up_runs" ]]; then
    echo "The course cannot run yet: wait for the set-up that is running."
    return 3
  fi
  echo "The course cannot run yet. What to do:"
  echo "  ./lockstep setup     installs what is missing (as root or with sudo)"
  echo "  ./lockstep run all   then runs it"
  missing_packages required
  if [[ -z "$PREFIX" ]] && ! environment_ready && ! find_python; then MISSING+=(python3 python3-venv); fi
  if ((${#MISSING[@]})); then echo "  or by hand:          sudo apt-get install ${MISSING[*]}"; fi
  return 3
}

doctor_environment() {
  local version="$TORCH" cuda="" text
  if environment_ready; then
    # A libtorch folder says its version in one file, a wheel in another.
    if [[ -n "$PREFIX" ]]; then
      version="$(cat -- "$PREFIX/build-version" 2>/dev/null || sed -n "s/^__version__ = '\(.*\)'/\1/p" "$PREFIX/version.py" 2>/dev/null)"
    fi
    if [[ -e "$TORCH_ROOT/lib/libtorch_cuda.so" ]]; then cuda=", with CUDA"; fi
    line ok torch "${version:-your own}$cuda, in $TORCH_ROOT"
    line ok "cmake, ninja" "in $ENVIRONMENT"
    return
  fi
  able=no
  text="$TORCH, to be put in $ENVIRONMENT (2.5 GB to download, 4.7 GB on disk)"
  if [[ -n "$PREFIX" ]]; then
    line ok torch "your own, in $PREFIX"
  elif [[ -e "$ENVIRONMENT" && ! -r "$STAMP" && -n "$set_up_runs" ]]; then
    line missing torch "$ENVIRONMENT is not whole yet: a set-up is running"
  elif [[ -e "$ENVIRONMENT" && ! -r "$STAMP" ]]; then
    line missing torch "$ENVIRONMENT is half made; set-up makes it again"
  elif [[ -r "$STAMP" ]]; then
    line missing torch "$ENVIRONMENT is not what requirements.txt says; set-up brings it up to date"
  else
    line missing torch "$text"
  fi
  line missing "cmake, ninja" "to be put in $ENVIRONMENT"
  if find_python; then
    line ok python "$("$BASE_PYTHON" --version 2>&1) ($BASE_PYTHON), to make the environment with"
  else
    line missing python "3.11 or newer with venv (packages python3, python3-venv)"
  fi
}

# Whether a call sets up or builds at this moment; LOCK_HOLDER is then which.
set_up_running() {
  [[ -r "$STATE/lock" ]] && ! flock --nonblock --shared "$STATE/lock" true && read_lock_holder
}

doctor_set_up() {
  if [[ -n "$set_up_runs" ]]; then line optional set-up "running: ${LOCK_HOLDER:-another ./lockstep}"; fi
}

doctor_packages() {
  local row need how package purpose name compiler text
  if found compiler; then
    choose_compiler
    for compiler in clang++ g++; do
      if ! found "command:$compiler"; then continue; fi
      text="$("$compiler" --version 2>/dev/null | head -n 1)"
      if [[ "$compiler" == "$CXX" ]]; then text+=" (would be used)"; fi
      line ok "$compiler" "$text"
    done
    if ! found "command:$CXX"; then
      able=no
      line missing "$CXX" "asked for with --compiler (package ${CXX/clang++/clang})"
    fi
  fi
  for row in "${NEEDS[@]}"; do
    IFS='|' read -r need how package purpose <<<"$row"
    name="${how#*:}"
    if [[ "$how" == file:* ]]; then name="${how##*/}"; fi
    if found "$how"; then
      if [[ "$how" != compiler && "$how" != "command:clang++" ]]; then line ok "$name" "$purpose"; fi
    elif [[ "$need" == optional ]]; then
      line optional "$name" "$purpose (package $package)"
    elif [[ "$need" == launchers || "$need" == browser ]]; then
      line optional "$name" "$purpose (package $package; ./lockstep setup --$need)"
    else
      able=no
      line missing "$name" "$purpose (package $package)"
    fi
  done
}

# nvidia-smi may take seconds; the driver's own files answer at once where they can be read.
doctor_gpus() {
  local file line name count=0 names="" header
  for file in /proc/driver/nvidia/gpus/*/information; do
    if [[ -r "$file" ]]; then
      while IFS= read -r line; do
        case "$line" in Model:*) name="${line#Model:}"; names+="${names:+,}${name//[$'\t']/ }"; ((++count)) ;; esac
      done <"$file"
    fi
  done
  if ((count == 0)) && command -v nvidia-smi >/dev/null; then
    while IFS= read -r line; do
      case "$line" in GPU\ *) names+="${names:+,} ${line%% (UUID*}"; ((++count)) ;; esac
    done < <(timeout 0.3 nvidia-smi -L 2>/dev/null)
  fi
  if ((count)); then line ok GPUs "$count:$names"; else line optional GPUs "none: the course runs on CPU ranks with Gloo"; fi
  for header in "$SITE/nvidia/nccl/include/nccl.h" /usr/include/nccl.h /usr/local/cuda/include/nccl.h none; do
    if [[ -e "$header" ]]; then break; fi
  done
  if [[ "$header" == none ]]; then
    line optional nccl.h "none: the NCCL backend is not built"
  else
    line ok nccl.h "$header"
  fi
  doctor_nvcc
}

# cmake/Cuda.cmake decides; here is what it goes by.
doctor_nvcc() {
  local nvcc release without="the two parts of lesson 17 that want a GPU, and the kernels, are not built"
  nvcc="$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)"
  release="$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
  if [[ -z "$release" ]]; then
    line optional nvcc "none: $without"
  else
    line ok nvcc "CUDA $release, $nvcc; it has to be 12.8 or newer, and of LibTorch's major version, or $without"
  fi
}

doctor_machine() {
  local free memory
  memory="$(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo 2>/dev/null)"
  line ok machine "$(nproc 2>/dev/null) cores, ${memory:-?} GB memory"
  free="$(df -Pm -- "$ROOT" 2>/dev/null | awk 'NR == 2 { print $4 }')"
  if [[ "$free" =~ ^[0-9]+$ ]] && ((free < 7000)) && ! environment_ready; then
    able=no
    line missing disk "$((free / 1024)) GB free in $ROOT; about 7 GB are needed"
  else
    line ok disk "$((${free:-0} / 1024)) GB free in $ROOT"
  fi
}

doctor_build() {
  if [[ -n "${BUILD:-}" && -e "$BUILD/lockstep-course" ]]; then
    line ok build "$BUILD"
  else
    line optional build "not built yet; ./lockstep run builds it${BUILD:+ in $BUILD}"
  fi
}
