# What the system must hold: a compiler and the headers of a few libraries. Looked for as files, which
# takes no process and also works where the system is no Debian.

# need | how it is looked for | Debian package | what for. What the guide needs (guide.sh) is required, too.
NEEDS=(
  "guide|compiler|g++|a C++20 compiler, its library and linker"
  "required|header:gloo/algorithm.h|libgloo-dev|gloo's headers, for c10d on CPUs"
  "required|header:nlohmann/json.hpp|nlohmann-json3-dev|reports"
  "guide|header:CLI/CLI.hpp|libcli11-dev|command lines"
  "guide|header:xxhash.h|libxxhash-dev|content hashes"
  "required|header:fmt/format.h|libfmt-dev|messages"
  "required|header:zlib.h|zlib1g-dev|gzipped data"
  "required|header:libdeflate.h|libdeflate-dev|checksums of checkpoints"
  "required|header:gtest/gtest.h|libgtest-dev|tests"
  "required|header:gmock/gmock.h|libgmock-dev|tests"
  "optional|command:clang++|clang|builds three times as fast as g++"
  "optional|command:ld.lld|lld|links faster"
  "optional|command:ccache|ccache|rebuilds faster"
  "optional|header:benchmark/benchmark.h|libbenchmark-dev|benchmarks"
  "optional|command:git|git|names the revision in reports"
  "optional|command:clang-format|clang-format|checks the format of the sources"
  "optional|command:tmux|tmux|tests of the course in a terminal"
  "optional|file:/usr/share/datasets/fashion-mnist|dataset-fashion-mnist|real data (else synthetic)"
  # For the tests of other launchers; only setup --launchers installs them.
  "launchers|command:srun|slurm-client|tests under srun"
  "launchers|daemon:slurmctld|slurmctld|tests under srun"
  "launchers|daemon:slurmd|slurmd|tests under srun"
  "launchers|daemon:munged|munge|tests under srun"
  "launchers|command:mpirun|openmpi-bin|tests under mpirun"
  "launchers|daemon:tc|iproute2|tests over a network that fails"
  # For the tests of the HTML report; only setup --browser installs them.
  "browser|command:chromium|chromium|tests of the HTML report"
  "browser|command:chromedriver|chromium-driver|tests of the HTML report"
)
# Folders in which headers are looked for, separated by colons.
HEADER_DIRS="${LOCKSTEP_HEADER_DIRS:-/usr/include:/usr/local/include:$STATE/gloo/include:${CPATH:-}:${CPLUS_INCLUDE_PATH:-}}"

found() {
  local dir IFS=:
  case "$1" in
    compiler) found command:g++ || { found command:clang++ && found command:ar; } ;;
    command:*) command -v "${1#command:}" >/dev/null ;;
    daemon:*) PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" found "command:${1#daemon:}" ;; # not on every PATH
    file:*) [[ -e "${1#file:}" ]] ;;
    header:*)
      for dir in $HEADER_DIRS; do
        if [[ -n "$dir" && -e "$dir/${1#header:}" ]]; then return 0; fi
      done
      return 1 ;;
  esac
}

# missing_packages guide|required|optional|launchers|browser: fills MISSING with the Debian packages.
missing_packages() {
  local row need how package
  MISSING=()
  for row in "${NEEDS[@]}"; do
    IFS='|' read -r need how package _ <<<"$row"
    if [[ "$1" == required && "$need" == guide ]]; then need=required; fi
    if [[ "$need" == "$1" ]] && ! found "$how"; then MISSING+=("$package"); fi
  done
  if [[ "$1" == required && "$COMPILER" == clang ]] && ! found command:clang++; then MISSING+=(clang); fi
  if [[ "$1" == required && "$COMPILER" == gcc ]] && ! found command:g++; then MISSING+=(g++); fi
}

# Installs what is missing. What is only optional is tried once and then noted in .lockstep/without.
set_up_packages() {
  missing_packages required
  if [[ "${1-}" == with-python ]] && ! find_python; then MISSING+=(python3 python3-venv); fi
  if [[ "${1-}" == with-python ]] && [[ -x /usr/bin/dpkg && ! -e /etc/ssl/certs/ca-certificates.crt ]]; then
    MISSING+=(ca-certificates)
  fi
  if ((${#MISSING[@]})); then
    install_packages "${MISSING[@]}" || fail "$INSTALL_ERROR" ${INSTALL_ADVICE:+"$INSTALL_ADVICE"}
  fi
  missing_packages optional
  if ((${#MISSING[@]})) && [[ "${MISSING[*]}" != "$(cat -- "$STATE/without" 2>/dev/null)" ]]; then
    local wanted="${MISSING[*]}"
    install_packages "${MISSING[@]}" || say "going on without $wanted ($INSTALL_ERROR)"
    missing_packages optional
    printf '%s' "${MISSING[*]}" >"$STATE/without"
  fi
}

# set_up_group guide|launchers|browser
set_up_group() {
  missing_packages "$1"
  if ((${#MISSING[@]})); then
    install_packages "${MISSING[@]}" || fail "$INSTALL_ERROR" ${INSTALL_ADVICE:+"$INSTALL_ADVICE"}
  fi
}

# install_packages NAME...: on failure sets INSTALL_ERROR and INSTALL_ADVICE and returns 1.
install_packages() {
  local as_root=() log="$STATE/log/apt.log" by_hand="apt-get install $*"
  INSTALL_ADVICE="Install by hand, then call again:  sudo $by_hand"
  if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null; then
    INSTALL_ERROR="missing: $*; and this is no Debian system, so they cannot be installed from here"
    INSTALL_ADVICE="Install what these Debian packages hold with your own package manager, then call again."
    return 1
  fi
  if [[ "$(id -u)" != 0 ]]; then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
      INSTALL_ERROR="missing: $*; and there is no permission to install them (neither root nor sudo without a password)"
      return 1
    fi
    as_root=(sudo -n)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  say "installing Debian packages: $*"
  # A failed update is no failure yet: the lists may be there already.
  logged "$log" '^$' "${as_root[@]}" apt-get update -q -o DPkg::Lock::Timeout=120 || true
  if logged "$log.install" '^Setting up (clang-|g\+\+-|lib[cgnx][a-z+]+-dev|dataset)' "${as_root[@]}" \
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"; then
    return 0
  fi
  cat -- "$log.install" >>"$log"
  INSTALL_ERROR="apt-get could not install: $* (log: $log)"
  if no_space "$log"; then
    INSTALL_ERROR="the disk is full: apt-get could not install: $*"
    INSTALL_ADVICE="Free some space (about 1.5 GB), then call again."
  elif no_network "$log"; then
    INSTALL_ERROR="a download failed: apt-get could not fetch: $* (log: $log)"
    INSTALL_ADVICE="Check the network, then call again."
  else
    show_end_of "$log" 5
  fi
  return 1
}
