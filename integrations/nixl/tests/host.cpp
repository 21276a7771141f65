/*
 * Stands in for NIXL: two agents in one process, without Python. For sanitizers, valgrind and profilers.
 *
 *     host PLUGIN CONNECTS DEATHS
 *
 * connects, transfers, notifies and disconnects; then kills peers that run in processes of their own. It fails if bytes differ, if
 * a death is not a disconnect within 2 s, or if the heap, the descriptors, the mappings or the threads grow with the count.
 */
#include "../src/nixl.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fstream>
#include <malloc.h>
#include <spawn.h>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

/* The layout of nixlDescList, which NIXL alone constructs. */
struct List {
    void *vtable = nullptr;
    nixl_mem_t type = DRAM_SEG;
    std::vector<nixlMetaDesc> descs;
    operator const nixl_meta_dlist_t &() const { return reinterpret_cast<const nixl_meta_dlist_t &>(*this); }
};

#define NEED(condition)                                                                                                                              \
    do {                                                                                                                                             \
        if (!(condition)) {                                                                                                                          \
            fprintf(stderr, "%d: %s\n", __LINE__, #condition);                                                                                       \
            exit(1);                                                                                                                                 \
        }                                                                                                                                            \
    } while (0)

struct Agent {
    std::vector<char> memory = std::vector<char>(1 << 20);
    nixl_b_params_t parameters;
    nixlBackendEngine *engine;
    nixlBackendMD *region = nullptr;
    std::string address, key;

    Agent(nixlBackendPlugin *plugin, const char *name, bool thread) {
        nixlBackendInitParams params{name, "TIELINE", &parameters, thread, 0, 0, false};
        engine = plugin->create_engine(&params);
        nixlBlobDesc all;
        all.addr = reinterpret_cast<uintptr_t>(memory.data());
        all.len = memory.size();
        all.devId = 0;
        NEED(engine->registerMem(all, DRAM_SEG, region) == NIXL_SUCCESS);
        NEED(engine->getConnInfo(address) == NIXL_SUCCESS && engine->getPublicData(region, key) == NIXL_SUCCESS);
    }
    ~Agent() {
        NEED(engine->deregisterMem(region) == NIXL_SUCCESS);
        delete engine;
    }
};

/* What a leak would raise. */
struct Held {
    size_t heap = mallinfo2().uordblks + mallinfo2().hblkhd, descriptors = 0, mappings = 0, threads = 0;
    bool exceeds(const Held &before) const {
        return heap >= before.heap + 131'072 || threads > before.threads || descriptors >= before.descriptors + 100 ||
               mappings >= before.mappings + 100;
    }
    Held() {
        descriptors = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) mappings++;
    }
    static size_t entries(const char *folder) {
        size_t count = 0;
        DIR *open = opendir(folder);
        while (readdir(open) != nullptr) count++;
        closedir(open);
        return count;
    }
};

/* Does `work` `count` times, and compares the second half with the first. The other side may close connections later, so the comparison is
   repeated until it succeeds, for at most 20 seconds. */
template <class Work> void without_growth(const char *what, int count, Work work) {
    for (int i = 0; i < count / 2; i++) work(i);
    const Held before;
    for (int i = count / 2; i < count; i++) work(i);
    Held after;
    for (int i = 0; i < 2000 && after.exceeds(before); i++) {
        usleep(10'000);
        work(count + i);
        after = Held();
    }
    printf("%s %d: heap %zu %zu, descriptors %zu %zu, mappings %zu %zu, threads %zu %zu\n", what, count, before.heap, after.heap, before.descriptors,
           after.descriptors, before.mappings, after.mappings, before.threads, after.threads);
    NEED(!after.exceeds(before));
}

static List pieces(nixlBackendMD *memory, uintptr_t base, size_t distance, bool backwards) {
    List list;
    for (size_t i = 0; i < 40; i++) {
        nixlMetaDesc piece;
        piece.addr = base + (backwards ? 39 - i : i) * distance;
        piece.len = 1000;
        piece.devId = 0;
        piece.metadataP = memory;
        list.descs.push_back(piece);
    }
    return list;
}

static nixlBackendMD *load(Agent &near, const std::string &address, const std::string &key, uintptr_t base) {
    nixlBlobDesc all;
    all.addr = base;
    all.len = 1 << 20;
    all.devId = 0;
    all.metaInfo = key;
    nixlBackendMD *target = nullptr;
    NEED(near.engine->loadRemoteConnInfo("far", address) == NIXL_SUCCESS);
    NEED(near.engine->loadRemoteMD(all, DRAM_SEG, "far", target) == NIXL_SUCCESS);
    return target;
}

static void unload(Agent &near, nixlBackendMD *target) {
    NEED(near.engine->unloadMD(target) == NIXL_SUCCESS);
    NEED(near.engine->disconnect("far") == NIXL_SUCCESS);
}

static void connect_and_move(Agent &near, Agent &far, int i) {
    const auto base = reinterpret_cast<uintptr_t>(far.memory.data());
    nixlBackendMD *target = load(near, far.address, far.key, base);
    const List here = pieces(near.region, reinterpret_cast<uintptr_t>(near.memory.data()), 5000, false);
    const List there = pieces(target, base, 7000, true);
    memset(near.memory.data(), i, near.memory.size());
    nixlBackendReqH *handle = nullptr;
    nixlBackendOptionalArgs with;
    with.hasNotif = true;
    with.notifMsg = std::string(i % 50 == 0 ? 300'000 : 10, 'n');
    NEED(near.engine->prepXfer(NIXL_WRITE, here, there, "far", handle, &with) == NIXL_SUCCESS);
    nixl_status_t status = near.engine->postXfer(NIXL_WRITE, here, there, "far", handle, &with);
    notif_list_t notes;
    while (status == NIXL_IN_PROG || notes.empty()) {
        NEED(far.engine->getNotifs(notes) == NIXL_SUCCESS);
        if (status == NIXL_IN_PROG) status = near.engine->checkXfer(handle);
    }
    NEED(status == NIXL_SUCCESS && notes.front().first == "near" && notes.front().second == with.notifMsg);
    NEED(far.memory[39 * 7000] == static_cast<char>(i));
    NEED(near.engine->releaseReqH(handle) == NIXL_SUCCESS);
    unload(near, target);
}

/* A peer in its own process writes what others need to reach it, and waits to be killed. */
static int be_a_peer(nixlBackendPlugin *plugin) {
    Agent self(plugin, "far", true);
    const auto base = reinterpret_cast<uintptr_t>(self.memory.data());
    const std::string text = self.address + self.key;
    const size_t head[3] = {self.address.size(), text.size(), base};
    NEED(write(STDOUT_FILENO, head, sizeof head) == sizeof head);
    NEED(write(STDOUT_FILENO, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    for (;;) pause();
}

static void outlive(Agent &near, char **words) {
    int ends[2];
    NEED(pipe(ends) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    char *arguments[] = {words[0], words[1], nullptr};
    pid_t peer = 0;
    NEED(posix_spawn(&peer, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    size_t head[3];
    NEED(read(ends[0], head, sizeof head) == sizeof head);
    std::string text(head[1], 0);
    NEED(read(ends[0], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    close(ends[0]);
    nixlBackendMD *target = load(near, text.substr(0, head[0]), text.substr(head[0]), head[2]);
    const List here = pieces(near.region, reinterpret_cast<uintptr_t>(near.memory.data()), 5000, false);
    const List there = pieces(target, head[2], 7000, true);
    nixlBackendReqH *handle = nullptr;
    NEED(near.engine->prepXfer(NIXL_READ, here, there, "far", handle, nullptr) == NIXL_SUCCESS);
    nixl_status_t status = near.engine->postXfer(NIXL_READ, here, there, "far", handle, nullptr);
    while (status == NIXL_IN_PROG) status = near.engine->checkXfer(handle);
    NEED(status == NIXL_SUCCESS);
    kill(peer, SIGKILL);
    NEED(waitpid(peer, nullptr, 0) == peer);
    const auto begun = std::chrono::steady_clock::now();
    status = near.engine->postXfer(NIXL_READ, here, there, "far", handle, nullptr);
    while (status == NIXL_IN_PROG) status = near.engine->checkXfer(handle);
    NEED(status == NIXL_ERR_REMOTE_DISCONNECT && std::chrono::steady_clock::now() - begun < std::chrono::seconds(2));
    NEED(near.engine->releaseReqH(handle) == NIXL_SUCCESS);
    unload(near, target);
}

int main(int count, char **words) {
    NEED(count > 1);
    setenv("NIXL_TIELINE_UNCHECKED", "1", 0);
    void *file = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) fprintf(stderr, "%s\n", dlerror());
    NEED(file != nullptr);
    auto *init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(file, "nixl_plugin_init"));
    NEED(init != nullptr && init() != nullptr && init()->api_version == 1);
    if (count < 4) return be_a_peer(init());
    for (const bool thread : {false, true}) {
        Agent near(init(), "near", thread), far(init(), "far", thread);
        without_growth("connects", atoi(words[2]) / 2, [&](int i) { connect_and_move(near, far, i); });
    }
    {
        Agent near(init(), "near", true);
        without_growth("deaths", atoi(words[3]), [&](int) { outlive(near, words); });
    }
    without_growth("agents", 8, [&](int) { Agent again(init(), "again", true); });
    return 0;
}
