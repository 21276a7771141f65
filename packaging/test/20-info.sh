# `tieline info --why --all` lists every installed provider with its file in the system directory.
tieline info --why --all > said
for file in /usr/lib/*/tieline-1/providers/libtieline_*.so; do
    grep -qF "$file" said || { cat said; echo "no $file"; exit 1; }
done
# Two providers find no device on this system; every file is valid.
lacks 'refused  *\(search\|permissions\|elf\|note\|abi\|probe\|dlopen\|symbol\|layout\|tables\)' said
tieline config verbs | grep -q TIELINE_VERBS_
tieline config tcp | grep -q TIELINE_TCP_
