/* Lines for the user. NIXL has no way to hand it a text, so they go where NIXL's own lines go: to stderr, by NIXL_LOG_LEVEL. */
#pragma once

#include <string>

namespace words {

enum class Level { Info, Warn, Error };

/* Writes one line. It does not fail, and keeps `errno`. */
void say(Level level, const std::string &text) noexcept;

} // namespace words
