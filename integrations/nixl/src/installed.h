/*
 * Refuses a NIXL whose engine interface is not the one that this plug-in was written for.
 *
 * NIXL checks a version number that has not changed since the interface was first published, although the interface has. Each of
 * NIXL's own plug-ins exports the vtable of nixlBackendEngine as a weak symbol. Its size and the names of its slots show which
 * interface the installation has.
 */
#pragma once

#include <string>

namespace installed {

/* Returns why this NIXL is refused; empty: it fits. `inside_nixl` is an address in the library that loads the plug-in. */
std::string refusal(const void *inside_nixl);

/* Compares one plug-in file. Returns false if it has no such vtable; otherwise `why` is empty if the vtable fits. */
bool compare(const std::string &file, std::string &why);

} // namespace installed
