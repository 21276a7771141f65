# Two processes move a file, over shared memory and over TCP, and every byte is checked.
file=$(readlink -f /usr/bin/perl)
tieline run -n 2 -- tieline demo "$file"
TIELINE_PROVIDERS=tcp,tcp-connect tieline run -n 2 -- tieline demo "$file"
