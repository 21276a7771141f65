# The core is not removed under a provider that needs it.
fails dpkg --remove libtieline0 > said 2>&1
grep -q 'depends on tieline-abi-1' said
