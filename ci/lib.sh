# Sourced by the scripts of this folder: where things are, and how missing ones are installed.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
root=$PWD
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
export PATH="$HOME/.cargo/bin:$PATH"

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# install PACKAGE...: by name, only those that are missing, and only where apt is.
install() {
  local missing=() p
  for p in "$@"; do dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p"); done
  [ ${#missing[@]} = 0 ] && return 0
  command -v apt-get >/dev/null || { echo "please install: ${missing[*]}" >&2; return 1; }
  echo "installing ${missing[*]}" >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update >/dev/null
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# install_idle PACKAGE...: as install; a service that comes with a package is not started.
install_idle() {
  local policy=/usr/sbin/policy-rc.d
  [ -e $policy ] && { install "$@"; return; }
  as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
  install "$@" || { as_root rm -f $policy; return 1; }
  as_root rm -f $policy
}

# Rust: whatever cargo is there if it is new enough, else Debian's own package of a recent one.
need_rust() {
  local want=1.89 have
  have=$(cargo --version 2>/dev/null | cut -d' ' -f2 || echo 0)
  if [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -1)" != "$want" ]; then
    install cargo-web rustc-web gcc libc6-dev
    for tool in cargo rustc; do command -v $tool >/dev/null || as_root ln -sf "$(dpkg -L $tool-web | grep -m1 "/bin/$tool")" "/usr/local/bin/$tool"; done
  fi
  command -v cc >/dev/null || install gcc libc6-dev
}
