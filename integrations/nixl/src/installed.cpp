#include "installed.h"

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace installed {
namespace {

constexpr const char *VTABLE = "_ZTV17nixlBackendEngine";
constexpr uint64_t WORD = 8;
constexpr uint64_t WORDS = 29;
constexpr uint64_t FIRST_PURE = 4;
constexpr uint64_t FIRST_BODY = 17;

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
/* The symbols of words 17 to 28, from abi.md. */
constexpr const char *BODIES[] = {
    "_ZNK17nixlBackendEngine11prepMemViewERK12nixlDescListI18nixlRemoteMetaDescERPvPK23nixlBackendOptionalArgs",
    "_ZNK17nixlBackendEngine11prepMemViewERK12nixlDescListI12nixlMetaDescERPvPK23nixlBackendOptionalArgs",
    "_ZNK17nixlBackendEngine14releaseMemViewEPv",
    "_ZNK17nixlBackendEngine13getPublicDataEPK13nixlBackendMDR" STRING,
    "_ZNK17nixlBackendEngine11getConnInfoER" STRING,
    "_ZN17nixlBackendEngine18loadRemoteConnInfoERK" STRING "S7_",
    "_ZN17nixlBackendEngine12loadRemoteMDERK12nixlBlobDescRK10nixl_mem_tRK" STRING "RP13nixlBackendMD",
    "_ZN17nixlBackendEngine11loadLocalMDEP13nixlBackendMDRS1_",
    "_ZN17nixlBackendEngine9getNotifsERSt6vectorISt4pairI" STRING "S7_ESaIS8_EE",
    "_ZNK17nixlBackendEngine8genNotifERK" STRING "S7_",
    "_ZNK17nixlBackendEngine8queryMemERK12nixlDescListI12nixlBlobDescERSt6vectorISt8optionalISt13unordered_mapI" STRING
    "SD_St4hashISD_ESt8equal_toISD_ESaISt4pairIKSD_SD_EEEESaISN_EE",
    "_ZNK17nixlBackendEngine16estimateXferCostERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK" STRING
    "RKP15nixlBackendReqHRNSt6chrono8durationIlSt5ratioILl1ELl1000000EEEESP_R11nixl_cost_tPK21nixlAgentOptionalArgs",
};
#undef STRING
static_assert(sizeof BODIES / sizeof *BODIES == WORDS - FIRST_BODY);

/* A file in memory. Every access checks that it lies in the file. */
class File {
    const unsigned char *bytes = nullptr;
    size_t length = 0;

public:
    explicit File(const std::string &path) {
        const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) return;
        struct stat about {};
        if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
            void *mapped = mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
            if (mapped != MAP_FAILED) {
                bytes = static_cast<const unsigned char *>(mapped);
                length = static_cast<size_t>(about.st_size);
            }
        }
        close(fd);
    }
    File(const File &) = delete;
    ~File() {
        if (bytes != nullptr) munmap(const_cast<unsigned char *>(bytes), length);
    }
    template <class T> bool read(uint64_t at, T &value) const {
        if (at > length || length - at < sizeof value) return false;
        memcpy(&value, bytes + at, sizeof value);
        return true;
    }
    /* The string at `at`, or null if it does not end in the file. */
    const char *text(uint64_t at) const {
        if (at >= length || memchr(bytes + at, 0, length - at) == nullptr) return nullptr;
        return reinterpret_cast<const char *>(bytes + at);
    }
};

struct Sections {
    std::vector<Elf64_Shdr> all;
    Elf64_Shdr symbols{};
    Elf64_Shdr strings{};
    size_t symbols_index = 0;
};

bool read_sections(const File &file, Sections &out) {
    Elf64_Ehdr head{};
    if (!file.read(0, head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64) return false;
    if (head.e_shentsize != sizeof(Elf64_Shdr)) return false;
    for (size_t i = 0; i < head.e_shnum; i++) {
        Elf64_Shdr section{};
        if (!file.read(head.e_shoff + i * sizeof section, section)) return false;
        out.all.push_back(section);
        if (section.sh_type == SHT_DYNSYM) out.symbols_index = i;
    }
    if (out.symbols_index == 0) return false;
    out.symbols = out.all[out.symbols_index];
    if (out.symbols.sh_entsize != sizeof(Elf64_Sym) || out.symbols.sh_link >= out.all.size()) return false;
    out.strings = out.all[out.symbols.sh_link];
    return true;
}

const char *name_of(const File &file, const Sections &sections, uint64_t symbol, Elf64_Sym &found) {
    if (symbol >= sections.symbols.sh_size / sizeof found) return nullptr;
    if (!file.read(sections.symbols.sh_offset + symbol * sizeof found, found)) return nullptr;
    return found.st_name < sections.strings.sh_size ? file.text(sections.strings.sh_offset + found.st_name) : nullptr;
}

bool find_vtable(const File &file, const Sections &sections, Elf64_Sym &vtable) {
    for (uint64_t i = 0; i < sections.symbols.sh_size / sizeof vtable; i++) {
        const char *name = name_of(file, sections, i, vtable);
        if (name != nullptr && vtable.st_shndx != SHN_UNDEF && strcmp(name, VTABLE) == 0) return true;
    }
    return false;
}

/* Says which slot has another name. A slot whose relocation has no name says nothing. */
std::string differing_slot(const File &file, const Sections &sections, const Elf64_Sym &vtable) {
    for (const Elf64_Shdr &section : sections.all) {
        if (section.sh_type != SHT_RELA || section.sh_link != sections.symbols_index) continue;
        for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Rela); i++) {
            Elf64_Rela entry{};
            if (!file.read(section.sh_offset + i * sizeof entry, entry)) break;
            if (entry.r_offset < vtable.st_value || entry.r_offset >= vtable.st_value + vtable.st_size) continue;
            const uint64_t word = (entry.r_offset - vtable.st_value) / WORD;
            Elf64_Sym symbol{};
            const uint64_t index = ELF64_R_SYM(entry.r_info);
            const char *name = index == 0 ? nullptr : name_of(file, sections, index, symbol);
            if (name == nullptr || word < FIRST_PURE || word >= WORDS) continue;
            const char *wanted = word < FIRST_BODY ? "__cxa_pure_virtual" : BODIES[word - FIRST_BODY];
            if (strcmp(name, wanted) != 0) return "slot " + std::to_string(word) + " is " + name + " and not " + wanted;
        }
    }
    return {};
}

std::string folder_of(const std::string &file) {
    const size_t slash = file.rfind('/');
    return slash == std::string::npos ? "." : file.substr(0, slash);
}

std::string file_of(const void *address) {
    Dl_info about{};
    if (dladdr(const_cast<void *>(address), &about) == 0 || about.dli_fname == nullptr) return {};
    char path[PATH_MAX];
    return realpath(about.dli_fname, path) != nullptr ? path : about.dli_fname;
}

std::vector<std::string> plugins_in(const std::string &folder) {
    std::vector<std::string> found;
    DIR *open = opendir(folder.c_str());
    if (open == nullptr) return found;
    while (const dirent *entry = readdir(open)) {
        const std::string name = entry->d_name;
        if (name.starts_with("libplugin_") && name.ends_with(".so")) found.push_back(folder + "/" + name);
    }
    closedir(open);
    return found;
}

} // namespace

bool compare(const std::string &path, std::string &why) {
    why.clear();
    const File file(path);
    Sections sections;
    Elf64_Sym vtable{};
    if (!read_sections(file, sections) || !find_vtable(file, sections, vtable)) return false;
    if (vtable.st_size != WORDS * WORD) {
        why = "it has " + std::to_string(vtable.st_size) + " bytes and not " + std::to_string(WORDS * WORD);
    } else {
        why = differing_slot(file, sections, vtable);
    }
    return true;
}

std::string refusal(const void *inside_nixl) {
    static const char here = 0;
    const std::string nixl = file_of(inside_nixl);
    std::vector<std::string> folders;
    if (!nixl.empty()) folders.push_back(folder_of(nixl) + "/plugins");
    if (const char *set = getenv("NIXL_PLUGIN_DIR"); set != nullptr && *set != 0) folders.emplace_back(set);
    folders.push_back(folder_of(file_of(&here)));
    std::string searched;
    for (const std::string &folder : folders) {
        bool any = false;
        for (const std::string &plugin : plugins_in(folder)) {
            std::string why;
            if (!compare(plugin, why)) continue;
            any = true;
            if (!why.empty()) {
                return "this plug-in was written for the engine interface of NIXL 1.0 to 1.5. The vtable of nixlBackendEngine in " + plugin +
                       " differs: " + why + ". Install a plug-in for this version of NIXL.";
            }
        }
        if (any) return {};
        searched += (searched.empty() ? "" : ", ") + folder;
    }
    if (const char *set = getenv("NIXL_TIELINE_UNCHECKED"); set != nullptr && strcmp(set, "1") == 0) return {};
    return "the version of NIXL cannot be checked, because none of its own plug-ins is in " + searched +
           ". Put one there (libplugin_POSIX.so is enough), or set NIXL_TIELINE_UNCHECKED=1 if this is NIXL 1.0 to 1.5.";
}

} // namespace installed
