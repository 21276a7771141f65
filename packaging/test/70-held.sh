# The package of the core cannot be removed while a provider needs it.
fails dpkg --remove libtieline0 > said 2>&1
grep -q 'depends on tieline-abi-1' said
