#!/bin/sh
# Installs servers from the named Debian packages; needs root. The benchmarks and tests start servers of
# their own, so the services that come with the packages are not started.
policy=/usr/sbin/policy-rc.d
if ! test -e $policy; then
	trap 'rm -f $policy' EXIT
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
fi
export DEBIAN_FRONTEND=noninteractive
timeout 120 apt-get update
for package in "$@"; do
	timeout 300 apt-get install -y --no-install-recommends "$package"
done
