# A C program compiles against the files of libtieline-dev and depends on the right library. Two processes of the program exchange data.
pkg-config --exists tieline || { echo 'there is no tieline.pc'; exit 1; }
cp -r /usr/share/doc/libtieline-dev/examples c
cd c
gzip -d ./*.gz 2>/dev/null || true
cc -std=c11 -Wall -Wextra -Werror -o ring ring.c $(pkg-config --cflags --libs tieline)
readelf -dW ring | grep -qF '[libtieline.so.0]'
readelf --dyn-syms -W ring | grep -q '@TIELINE_0.1'
tieline run -n 2 -- ./ring
# The core that the program links finds providers in the directory of the packages.
TIELINE_REPORT=stderr tieline run -n 2 -- ./ring 2> said
grep -q '/tieline-1/providers/libtieline_' said || { cat said; exit 1; }
