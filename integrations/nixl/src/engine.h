/*
 * One agent's side of Tieline: a context, a worker, and what belongs to them. plugin.cpp puts NIXL's interface in front of it.
 *
 * One lock guards everything. The library's handlers run inside calls of the thread that holds it. A thread makes progress while
 * no caller does, if NIXL asks for a progress thread.
 */
#pragma once

#include "nixl.h"

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <tieline.h>
#include <unordered_set>

/* The ids of the plug-in's messages. */
constexpr uint16_t MESSAGE_NOTE = 1;
constexpr uint16_t MESSAGE_HELLO = 2;

/* A failure with its words, inside the plug-in. It never leaves plugin.cpp. */
struct Refused : std::runtime_error {
    nixl_status_t status;
    Refused(nixl_status_t with, const std::string &why) : std::runtime_error(why), status(with) {}
};

/* Another agent, from its connection data to `disconnect`. */
struct Peer {
    std::string agent;
    std::string address;
    tieline_endpoint *endpoint = nullptr;
    /* `disconnect` was called: the endpoint's handle is invalid. */
    bool gone = false;
    /* The reason why the endpoint has failed; empty before. */
    std::string why;
    ~Peer();
};

/* Registered local memory: what registerMem returns. */
struct Region : nixlBackendMD {
    tieline_region *region = nullptr;
    uintptr_t base = 0;
    size_t len = 0;
    Region() : nixlBackendMD(true) {}
};

/* A peer's registered memory. Requests share it, because NIXL may unload it while they run. */
struct Key {
    std::shared_ptr<Peer> peer;
    tieline_key *key = nullptr;
    uintptr_t base = 0;
    size_t len = 0;
    ~Key();
};

/* The far side of a transfer: what loadRemoteMD returns, and loadLocalMD for this agent's own memory. */
struct Target : nixlBackendMD {
    std::shared_ptr<Key> key;
    const Region *own = nullptr;
    Target() : nixlBackendMD(false) {}
};

/* A transfer: what prepXfer returns. It may be posted again after it has ended. */
struct Request : nixlBackendReqH {
    struct Part {
        tieline_key *key;
        uint64_t offset;
        tieline_region *local;
        uint64_t local_offset;
        size_t len;
    };
    struct Copy {
        void *to;
        const void *from;
        size_t len;
    };
    bool reads = false;
    /* Null for a transfer within this agent, which consists of copies. */
    std::shared_ptr<Peer> peer;
    std::vector<std::shared_ptr<Key>> keys;
    std::vector<Part> parts;
    std::vector<Copy> copies;
    tieline_counter *counter = nullptr;
    /* The parts as one operation, if there are several. */
    tieline_list *list = nullptr;
    /* Local memory of the request was deregistered. */
    bool is_stale = false;
    /* The parts before this one were posted. */
    size_t next = 0;
    /* The status of a failed post, or 0. */
    int32_t failed = 0;
    bool has_note = false;
    bool note_sent = false;
    /* The notification cannot be handed to the library before the operations have ended. */
    bool note_waits = false;
    std::string note;
    /* The operations that were pending when they were posted, for a cancel. */
    std::vector<uint64_t> numbers;
    bool active = false;
    bool canceled = false;
    nixl_status_t status = NIXL_ERR_NOT_POSTED;
    ~Request() override;
};

class Engine {
public:
    explicit Engine(const nixlBackendInitParams &params);
    Engine(const Engine &) = delete;
    ~Engine();

    /* Whether this process was forked from the one that opened the engine: then no call is possible. */
    bool is_inherited() const;
    static const nixl_b_params_t &parameters();

    std::string address();
    Region *register_memory(const nixlBlobDesc &memory);
    void deregister_memory(Region *region);
    std::string public_key(const Region &region);
    void load_peer(const std::string &agent, const std::string &address);
    void connect(const std::string &agent);
    void disconnect(const std::string &agent);
    Target *load_target(const nixlBlobDesc &memory, const std::string &agent);
    Target *load_own(const Region *region);
    void unload(Target *target);

    Request *prepare(bool reads, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent);
    nixl_status_t post(Request &request, const nixlBackendOptionalArgs *options);
    nixl_status_t check(Request &request);
    void release(Request *request);

    void notify(const std::string &agent, const std::string &text);
    void take_notifications(notif_list_t &list);

private:
    /* A notification that has not arrived completely, or that waits for an earlier one of the same peer. */
    struct Incoming {
        uint32_t peer;
        std::string bytes;
        size_t name_len;
        tieline_region *region = nullptr;
        enum { Arriving, Arrived, Lost } state = Arriving;
    };
    struct Outgoing {
        std::shared_ptr<Peer> peer;
        std::string bytes;
    };
    using Guard = std::unique_lock<std::mutex>;

    void open(const nixlBackendInitParams &params);
    void close();
    void run();
    void end_thread();
    static void end_threads();
    /* Returns whether there was an event. */
    bool make_progress();
    void serve();
    void help_others();
    void called() { calls++; }
    std::shared_ptr<Peer> find(const std::string &agent);

    void list_parts(Request &request);
    void forget_list(Request &request);
    int32_t post_next(Request &request, const tieline_how &how, uint64_t *number, size_t *posted);
    void post_more(Request &request);
    void follow(Request &request);
    nixl_status_t settle(Request &request);
    nixl_status_t end(Request &request, nixl_status_t status);
    nixl_status_t failure(Request &request, int32_t status, const std::string &words);
    void cancel(Request &request);
    void wake_thread();

    std::string note_bytes(const std::string &text) const;
    int32_t send_note(const Peer &peer, const std::string &bytes, const tieline_how *how, uint64_t *number);
    void send_waiting_notes();
    void take_arrived_notes();
    void hand_over();
    static void on_note(void *user, const tieline_message *message);
    void note_arrived(const tieline_message &message);
    static void on_failure(void *user, tieline_endpoint *endpoint, const tieline_error *why);

    const std::string name;
    size_t longest_note = size_t{1} << 30;
    int64_t close_timeout_ns = 2'000'000'000;
    unsigned generation;

    std::mutex lock;
    tieline_context *context = nullptr;
    tieline_worker *worker = nullptr;
    bool is_broken = false;
    std::unordered_map<std::string, std::shared_ptr<Peer>> peers;
    /* The regions and targets that NIXL holds. It may return one of them twice, if a list names equal memory twice. */
    std::unordered_set<const nixlBackendMD *> held;
    /* Requests that need more than the library's own progress: parts to post, or a notification to send. */
    std::vector<Request *> wanting;
    /* Every prepared request with another agent. */
    std::unordered_set<Request *> requests;
    notif_list_t notes;
    std::list<Incoming> incoming;
    std::list<Outgoing> outgoing;

    std::thread thread;
    std::atomic<bool> stop{false};
    std::atomic<bool> asleep{false};
    uint64_t calls = 0;
    uint64_t pause_ns = 1'000'000;
    int waker = -1;
};

/* A failed call of the library in words: what was done, and the library's own text. */
[[noreturn]] void refuse(int32_t status, const std::string &what);
nixl_status_t status_of(int32_t status);
