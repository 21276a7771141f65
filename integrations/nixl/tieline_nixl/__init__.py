"""The backend TIELINE of NIXL: the plug-in, the library and the providers are beside this file."""

import glob
import os

__version__ = "0.2.0"
HERE = os.path.dirname(os.path.abspath(__file__))
PLUGIN = os.path.join(HERE, "libplugin_TIELINE.so")


def folders():
    """Returns the directories in which the installed wheels of NIXL search for plug-ins."""
    return sorted(glob.glob(os.path.join(os.path.dirname(HERE), ".nixl*.mesonpy.libs", "plugins")))


def switch_on():
    """Links the plug-in into the directories of NIXL, beside its other plug-ins. Returns the links."""
    links = [os.path.join(folder, os.path.basename(PLUGIN)) for folder in folders()]
    for link in links:
        if os.path.lexists(link):
            os.remove(link)
        os.symlink(os.path.relpath(PLUGIN, os.path.dirname(link)), link)
    return links


def switch_off():
    """Removes the links that `switch_on` made. Returns them."""
    links = [os.path.join(folder, os.path.basename(PLUGIN)) for folder in folders()]
    links = [link for link in links if os.path.islink(link)]
    for link in links:
        os.remove(link)
    return links
