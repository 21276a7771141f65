# A provider without a core is refused, and the package manager names the missing package.
fails dpkg -i /packages/tieline-provider-verbs_*.deb > said 2>&1
grep -q 'depends on tieline-abi-1 (>= 0); however' said
dpkg --purge tieline-provider-verbs
