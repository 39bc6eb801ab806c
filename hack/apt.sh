#!/bin/sh
# Installs the Debian packages that the tests need and that this machine lacks.
#
#   hack/apt.sh                  everything that the tests can use
#   hack/apt.sh podman runc      these only
#
# Without root (and without a sudo that asks nothing) or without apt-get it installs
# nothing, says what is missing, and ends with 0: the tests that need it are then
# skipped, or fail where REQUIRE names them. A failed installation ends with 1.
set -eu

[ $# -gt 0 ] || set -- containerd runc podman conmon etcd-server iptables nftables iproute2 util-linux chromium fonts-dejavu-core prometheus

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
	echo "apt.sh: no Debian system: install by hand what you lack of: $*" >&2
	exit 0
fi

missing=
for p in "$@"; do
	case $(dpkg-query -W -f '${Status}' "$p" 2>/dev/null || true) in
	"install ok installed") ;;
	*) missing="$missing $p" ;;
	esac
done
if [ -z "$missing" ]; then
	exit 0
fi

run=
if [ "$(id -u)" != 0 ]; then
	if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		run="sudo -n"
	else
		echo "apt.sh: missing, and neither root nor sudo to install it:$missing" >&2
		exit 0
	fi
fi

# DPkg::Lock::Timeout makes two runs at once wait for each other instead of failing.
# `apt-get update` has a lock of its own, which no option waits for: so it is tried
# again, and its failure decides nothing if the lists at hand have the packages.
opts="-q -o DPkg::Lock::Timeout=300 -o APT::Get::Assume-Yes=true"
tries=0
# shellcheck disable=SC2086 # the options and packages are lists of words
until $run apt-get $opts update >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ "$tries" -lt 5 ] || break
	sleep 3
done
# shellcheck disable=SC2086
if ! $run env DEBIAN_FRONTEND=noninteractive apt-get $opts install --no-install-recommends $missing >&2; then
	echo "apt.sh: could not install:$missing" >&2
	exit 1
fi
