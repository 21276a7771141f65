/* How an engine begins and ends, and its progress thread. */
#include "engine.h"
#include "words.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

using words::Level;
using words::say;

namespace {

/* Parameters with names of their own, and the settings that they set. A parameter may also have the setting's own name. */
constexpr struct {
    const char *name;
    const char *setting;
} PARAMETERS[] = {
    {"providers", "TIELINE_PROVIDERS"},     {"interfaces", "TIELINE_TCP_INTERFACES"},
    {"ports", "TIELINE_TCP_PORTS"},         {"secret", "TIELINE_SECRET"},
    {"secret_file", "TIELINE_SECRET_FILE"}, {"failure_timeout", "TIELINE_FAILURE_TIMEOUT"},
    {"report", "TIELINE_REPORT"},
};
constexpr const char *FAILURE_TIMEOUT = "TIELINE_FAILURE_TIMEOUT";
/* The longest silence of a lost host; an engine that waits for it cannot serve meanwhile. */
constexpr const char *OWN_FAILURE_TIMEOUT = "2s";

/* The time after an event in which the progress thread looks for the next one before it sleeps. It yields its processor meanwhile. */
constexpr auto LOOKS = std::chrono::microseconds(100);
/* If a yield takes longer, another thread needs the processor: then the progress thread sleeps at once, for a while. */
constexpr auto LONG_YIELD = std::chrono::microseconds(10);
constexpr auto WITHOUT_LOOKS = std::chrono::milliseconds(50);

/* The number of forks that lead to this process. */
std::atomic<unsigned> forks{0};

/* The engines of this process. An engine without a thread makes progress on others that have none either. */
struct Others {
    std::mutex lock;
    std::vector<Engine *> engines;
    std::atomic<size_t> count{0};
};
Others &others() {
    static Others *const all = new Others; /* Never destroyed: agents may end after static objects. */
    return *all;
}

void count_forks() {
    static const int once = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    (void)once;
}

std::string setting_of(const std::string &parameter) {
    for (const auto &known : PARAMETERS)
        if (parameter == known.name) return known.setting;
    if (parameter.starts_with("TIELINE_")) return parameter;
    std::string names;
    for (const auto &known : PARAMETERS) names += std::string(known.name) + ", ";
    throw Refused(NIXL_ERR_INVALID_PARAM, "the backend has no parameter \"" + parameter + "\"; it has " + names + "and every setting TIELINE_*");
}

} // namespace

nixl_status_t status_of(int32_t status) {
    switch (status) {
    case TIELINE_PEER_FAILED:
    case TIELINE_CLOSED:
    case TIELINE_UNREACHABLE:
    case TIELINE_EXPIRED:
        return NIXL_ERR_REMOTE_DISCONNECT;
    case TIELINE_INVALID:
    case TIELINE_OUT_OF_RANGE:
    case TIELINE_TOO_LARGE:
    case TIELINE_UNSUPPORTED_PARAM:
        return NIXL_ERR_INVALID_PARAM;
    case TIELINE_KEY_REJECTED:
        return NIXL_ERR_NOT_FOUND;
    case TIELINE_PERMISSION:
        return NIXL_ERR_NOT_ALLOWED;
    case TIELINE_UNSUPPORTED:
        return NIXL_ERR_NOT_SUPPORTED;
    case TIELINE_CANCELED:
        return NIXL_ERR_CANCELED;
    case TIELINE_BAD_DATA:
        return NIXL_ERR_MISMATCH;
    default:
        return NIXL_ERR_BACKEND;
    }
}

void refuse(int32_t status, const std::string &what) { throw Refused(status_of(status), what + ": " + tieline_error_text()); }

const nixl_b_params_t &Engine::parameters() {
    static const nixl_b_params_t *const all = [] {
        auto *map = new nixl_b_params_t;
        for (const auto &known : PARAMETERS) map->emplace(known.name, "");
        (*map)["failure_timeout"] = OWN_FAILURE_TIMEOUT;
        return map;
    }();
    return *all;
}

Engine::Engine(const nixlBackendInitParams &params) : name(params.localAgent) {
    count_forks();
    generation = forks.load();
    try {
        open(params);
    } catch (...) {
        close();
        throw;
    }
    Others &all = others();
    std::lock_guard guard(all.lock);
    all.engines.push_back(this);
    all.count.store(all.engines.size());
    /* Registered after the library's own function, so that it runs before: no thread is in a worker when the library says goodbye. */
    static const int once = atexit([] { end_threads(); });
    (void)once;
}

void Engine::end_threads() {
    Others &all = others();
    const std::unique_lock guard(all.lock, std::try_to_lock);
    if (!guard) return;
    for (Engine *engine : all.engines)
        if (!engine->is_inherited()) engine->end_thread();
}

void Engine::end_thread() {
    stop.store(true);
    if (waker >= 0) (void)!write(waker, "\1\0\0\0\0\0\0\0", 8);
    if (thread.joinable()) thread.join();
}

void Engine::open(const nixlBackendInitParams &params) {
    std::vector<std::pair<std::string, std::string>> set;
    for (const auto &[parameter, value] : *params.customParams)
        if (!value.empty()) set.emplace_back(setting_of(parameter), value);
    const auto is_limit = [](const auto &pair) { return pair.first == FAILURE_TIMEOUT; };
    const char *outside = getenv(FAILURE_TIMEOUT);
    if (std::none_of(set.begin(), set.end(), is_limit) && (outside == nullptr || *outside == 0))
        set.emplace_back(FAILURE_TIMEOUT, OWN_FAILURE_TIMEOUT);
    std::vector<tieline_setting> settings;
    for (const auto &[setting, value] : set) settings.push_back({setting.c_str(), value.c_str()});

    tieline_context_params open{};
    open.size = sizeof open;
    open.settings = settings.data();
    open.settings_count = settings.size();
    open.flags = params.enableProgTh ? TIELINE_CONTEXT_PROGRESS_THREAD : 0;
    int32_t status = tieline_context_open(&open, &context);
    if (status < 0) refuse(status, "the context was not opened");
    status = tieline_worker_open(context, &worker);
    if (status < 0) refuse(status, "the worker was not opened");
    if ((status = tieline_worker_on_message(worker, MESSAGE_NOTE, on_note, this)) < 0) refuse(status, "no handler of notifications");
    const auto nothing = [](void *, const tieline_message *) {};
    if ((status = tieline_worker_on_message(worker, MESSAGE_HELLO, nothing, nullptr)) < 0) refuse(status, "no handler of connections");
    if ((status = tieline_worker_on_endpoint_failure(worker, on_failure, this)) < 0) refuse(status, "no handler of failures");

    if (!params.enableProgTh) return;
    if (params.pthrDelay != 0) pause_ns = std::min<uint64_t>(params.pthrDelay, 1'000'000) * 1000;
    waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (waker < 0) throw Refused(NIXL_ERR_BACKEND, "no descriptor for the progress thread");
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    try {
        thread = std::thread([this] { run(); });
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), "nixl-tieline");
}

Engine::~Engine() {
    if (is_inherited()) {
        /* The thread does not exist in this process, and its handle must not be joined. */
        if (thread.joinable()) thread.detach();
        return;
    }
    Others &all = others();
    {
        std::lock_guard guard(all.lock);
        std::erase(all.engines, this);
        all.count.store(all.engines.size());
    }
    close();
}

void Engine::close() {
    end_thread();
    Guard guard(lock);
    if (worker != nullptr) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(close_timeout_ns);
        while (!outgoing.empty() && std::chrono::steady_clock::now() < until) make_progress();
        if (tieline_worker_close(worker, close_timeout_ns) < 0) {
            say(Level::Info, "agent " + name + " ends before everything is confirmed: " + tieline_error_text());
            (void)tieline_worker_drop(worker);
        }
    }
    for (auto &[agent, peer] : peers) peer->gone = tieline_endpoint_drop(peer->endpoint) >= 0 || peer->gone;
    peers.clear();
    for (Incoming &note : incoming)
        if (note.region != nullptr) (void)tieline_region_drop(note.region);
    if (context != nullptr) (void)tieline_context_close(context);
    if (waker >= 0) ::close(waker);
    worker = nullptr;
    context = nullptr;
    waker = -1;
}

bool Engine::is_inherited() const { return generation != forks.load(std::memory_order_relaxed); }

bool Engine::make_progress() {
    const int32_t moved = tieline_worker_progress(worker);
    if (moved < 0 && !is_broken) {
        is_broken = true;
        say(Level::Error, std::string("the worker of agent ") + name + " has failed: " + tieline_error_text());
    }
    if (!incoming.empty()) take_arrived_notes();
    if (!outgoing.empty()) send_waiting_notes();
    if (!thread.joinable() && others().count.load(std::memory_order_relaxed) > 1) help_others();
    return moved > 0;
}

void Engine::serve() {
    for (size_t i = wanting.size(); i-- > 0;)
        if (i < wanting.size()) (void)settle(*wanting[i]);
}

/* A process with several agents and no progress thread may poll only one of them, and that one may wait for another. */
void Engine::help_others() {
    Others &all = others();
    const std::unique_lock list(all.lock, std::try_to_lock);
    if (!list) return;
    for (Engine *other : all.engines) {
        if (other == this || other->thread.joinable()) continue;
        const Guard guard(other->lock, std::try_to_lock);
        if (!guard || other->worker == nullptr) continue;
        (void)tieline_worker_progress(other->worker);
        if (!other->incoming.empty()) other->take_arrived_notes();
    }
}

void Engine::wake_thread() {
    if (waker >= 0 && asleep.exchange(false)) (void)!write(waker, "\1\0\0\0\0\0\0\0", 8);
}

/*
 * Makes progress while no caller does. While callers come, the thread only looks every `pause_ns` whether they still do. Without
 * callers it sleeps on the worker's descriptor. Before, it looks for further events for a while: the next request of a peer usually
 * follows the last one within microseconds, and a wake-up takes longer than the copy of 64 KiB.
 */
void Engine::run() {
    uint64_t seen = 0;
    auto looks_until = std::chrono::steady_clock::now(), looks_from = looks_until;
    pollfd watched[2] = {{waker, POLLIN, 0}, {-1, POLLIN, 0}};
    {
        const Guard guard(lock);
        int32_t fd = -1;
        if (tieline_worker_fd(worker, &fd) >= 0) watched[1].fd = fd;
    }
    while (!stop.load()) {
        nfds_t count = 1;
        bool looks_on = false;
        timespec limit{static_cast<time_t>(pause_ns / 1'000'000'000), static_cast<long>(pause_ns % 1'000'000'000)};
        {
            const Guard guard(lock, std::try_to_lock);
            if (guard) {
                if (calls == seen) {
                    const bool moved = make_progress();
                    serve();
                    const auto now = std::chrono::steady_clock::now();
                    if (moved) looks_until = now + LOOKS;
                    looks_on = now >= looks_from && now < looks_until;
                    const int32_t armed = looks_on || watched[1].fd < 0 ? TIELINE_UNSUPPORTED : tieline_worker_arm(worker);
                    if (armed == TIELINE_PENDING) {
                        limit = {0, 0};
                    } else if (armed == TIELINE_OK) {
                        asleep.store(true);
                        count = 2;
                        limit = outgoing.empty() && wanting.empty() ? timespec{1, 0} : limit;
                    }
                }
                seen = calls;
            }
        }
        if (looks_on) {
            const auto before = std::chrono::steady_clock::now();
            sched_yield();
            const auto after = std::chrono::steady_clock::now();
            if (after - before > LONG_YIELD) looks_from = after + WITHOUT_LOOKS;
            continue;
        }
        const int ready = ppoll(watched, count, &limit, nullptr);
        asleep.store(false);
        uint64_t woken;
        if (ready > 0 && (watched[0].revents & POLLIN) != 0) (void)!read(waker, &woken, sizeof woken);
    }
}
