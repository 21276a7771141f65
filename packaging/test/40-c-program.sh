# A C program is compiled against what libtieline-dev has installed, says which library it needs, and two of it move data.
pkg-config --exists tieline || { echo 'there is no tieline.pc'; exit 1; }
cp -r /usr/share/doc/libtieline-dev/examples c
cd c
gzip -d ./*.gz 2>/dev/null || true
cc -std=c11 -Wall -Wextra -Werror -o ring ring.c $(pkg-config --cflags --libs tieline)
readelf -dW ring | grep -qF '[libtieline.so.0]'
readelf --dyn-syms -W ring | grep -q '@TIELINE_0.1'
tieline run -n 2 -- ./ring
# The core that it has asks for providers where packages put them.
TIELINE_REPORT=stderr tieline run -n 2 -- ./ring 2> said
grep -q '/tieline-1/providers/libtieline_' said || { cat said; exit 1; }
