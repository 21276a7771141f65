"""python3 -m tieline_nixl [on | off]: links the backend TIELINE into the installed NIXL, or removes the links."""

import sys

from . import folders, switch_off, switch_on

word = sys.argv[1] if len(sys.argv) > 1 else "on"
if word not in ("on", "off"):
    sys.exit(__doc__)
if not folders():
    sys.exit("no wheel of NIXL is installed beside tieline_nixl (pip install nixl-cu12)")
links = switch_on() if word == "on" else switch_off()
print("\n".join(f"{'made' if word == 'on' else 'removed'} {link}" for link in links))
