#include "words.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace words {
namespace {

/* The least level that NIXL_LOG_LEVEL lets through; NIXL's default is WARN. */
int least() noexcept {
    const char *set = getenv("NIXL_LOG_LEVEL");
    if (set == nullptr) return 1;
    if (strcmp(set, "TRACE") == 0 || strcmp(set, "DEBUG") == 0 || strcmp(set, "INFO") == 0) return 0;
    if (strcmp(set, "ERROR") == 0) return 2;
    return strcmp(set, "FATAL") == 0 ? 3 : 1;
}

} // namespace

void say(Level level, const std::string &text) noexcept {
    if (static_cast<int>(level) < least()) return;
    const int kept = errno;
    try {
        const char *name = level == Level::Error ? "error" : level == Level::Warn ? "warning" : "info";
        const std::string line = std::string("nixl TIELINE ") + name + ": " + text + "\n";
        size_t at = 0;
        while (at < line.size()) {
            const ssize_t written = write(STDERR_FILENO, line.data() + at, line.size() - at);
            if (written <= 0) break;
            at += static_cast<size_t>(written);
        }
    } catch (...) {
    }
    errno = kept;
}

} // namespace words
