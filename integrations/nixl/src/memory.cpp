/* Registered memory, peers, and the memory of peers. */
#include "engine.h"
#include "words.h"

#include <algorithm>
#include <sstream>

using words::Level;
using words::say;

namespace {

/* The first byte of a region's public data: the format of the rest, which is the library's key. */
constexpr char FORMAT = 1;

template <class Call> std::string bytes_of(const char *what, Call call) {
    std::string bytes;
    size_t len = 0;
    int32_t status = call(nullptr, &len);
    while (status == TIELINE_TOO_LARGE && len > bytes.size()) {
        bytes.resize(len);
        status = call(bytes.data(), &len);
    }
    if (status < 0) refuse(status, what);
    bytes.resize(len);
    return bytes;
}

std::string range(uintptr_t base, size_t len) {
    std::ostringstream text;
    text << len << " bytes at 0x" << std::hex << base;
    return text.str();
}

} // namespace

Peer::~Peer() {
    if (endpoint != nullptr && !gone) (void)tieline_endpoint_drop(endpoint);
}

Key::~Key() {
    if (key != nullptr) (void)tieline_key_drop(key);
}

std::string Engine::address() {
    const Guard guard(lock);
    return bytes_of("no address", [&](void *to, size_t *len) { return tieline_worker_address(worker, to, len); });
}

Region *Engine::register_memory(const nixlBlobDesc &memory) {
    auto made = std::make_unique<Region>();
    made->base = memory.addr;
    made->len = memory.len;
    auto *start = reinterpret_cast<void *>(memory.addr);
    int32_t status = tieline_context_register(context, start, memory.len, TIELINE_READ | TIELINE_WRITE, &made->region);
    if (status == TIELINE_PERMISSION) {
        /* Memory that is mapped for reading only can still be sent and read. */
        const std::string first = tieline_error_text();
        status = tieline_context_register(context, start, memory.len, TIELINE_READ, &made->region);
        if (status < 0) throw Refused(NIXL_ERR_NOT_ALLOWED, range(memory.addr, memory.len) + " cannot be registered: " + first);
    }
    if (status < 0) refuse(status, range(memory.addr, memory.len) + " cannot be registered");
    const Guard guard(lock);
    held.insert(made.get());
    return made.release();
}

void Engine::deregister_memory(Region *region) {
    const Guard guard(lock);
    called();
    if (held.erase(region) == 0)
        throw Refused(NIXL_ERR_INVALID_PARAM, "a registration was ended twice, because one list names equal memory twice. "
                                              "End each registration by a call of its own. One of them goes on.");
    const std::unique_ptr<Region> owned(region);
    const auto uses = [&](const Request::Part &part) { return part.local == region->region; };
    for (Request *request : requests)
        if (!request->is_stale && std::any_of(request->parts.begin(), request->parts.end(), uses)) forget_list(*request);
    const int32_t status = tieline_worker_close_region(worker, region->region, close_timeout_ns);
    if (status >= 0) return;
    const std::string text = tieline_error_text();
    (void)tieline_region_drop(region->region);
    throw Refused(NIXL_ERR_BACKEND, range(region->base, region->len) +
                                        " was deregistered, but a transfer may still access it. Keep the memory mapped: " + text);
}

std::string Engine::public_key(const Region &region) {
    const std::string key = bytes_of("no key", [&](void *to, size_t *len) { return tieline_region_key(region.region, to, len); });
    return std::string(1, FORMAT) + key;
}

std::shared_ptr<Peer> Engine::find(const std::string &agent) {
    const auto found = peers.find(agent);
    if (found == peers.end()) throw Refused(NIXL_ERR_NOT_FOUND, "no metadata of agent " + agent + " is loaded");
    return found->second;
}

void Engine::load_peer(const std::string &agent, const std::string &address) {
    const Guard guard(lock);
    called();
    const auto before = peers.find(agent);
    if (before != peers.end()) {
        const bool is_same = before->second->address == address;
        if (is_same && tieline_endpoint_error(before->second->endpoint, nullptr) >= 0) return;
        (void)tieline_endpoint_drop(before->second->endpoint);
        before->second->gone = true;
        peers.erase(before);
    }
    auto peer = std::make_shared<Peer>();
    peer->agent = agent;
    peer->address = address;
    const int32_t status = tieline_worker_connect(worker, address.data(), address.size(), &peer->endpoint);
    if (status < 0) refuse(status, "no endpoint to agent " + agent);
    peers.emplace(agent, std::move(peer));
}

/* NIXL asks for a connection in advance: an empty message forms it, and the other side drops the message. */
void Engine::connect(const std::string &agent) {
    if (agent == name) return;
    const Guard guard(lock);
    called();
    const auto peer = find(agent);
    const int32_t status = tieline_send(peer->endpoint, MESSAGE_HELLO, 0, nullptr, 0, nullptr, nullptr);
    if (status < 0 && status != TIELINE_AGAIN) refuse(status, "no connection to agent " + agent);
    make_progress();
    wake_thread();
}

void Engine::disconnect(const std::string &agent) {
    if (agent == name) return;
    const Guard guard(lock);
    called();
    const auto peer = find(agent);
    peers.erase(agent);
    std::erase_if(outgoing, [&](const Outgoing &note) { return note.peer == peer; });
    peer->gone = true;
    (void)tieline_endpoint_drop(peer->endpoint);
    make_progress();
}

Target *Engine::load_target(const nixlBlobDesc &memory, const std::string &agent) {
    const Guard guard(lock);
    const auto peer = find(agent);
    if (memory.metaInfo.size() < 2 || memory.metaInfo[0] != FORMAT)
        throw Refused(NIXL_ERR_MISMATCH, "the metadata of agent " + agent + " has a format that this version of the plug-in does not know");
    auto made = std::make_unique<Target>();
    made->key = std::make_shared<Key>();
    made->key->peer = peer;
    made->key->base = memory.addr;
    made->key->len = memory.len;
    const std::string bytes = memory.metaInfo.substr(1);
    int32_t status = tieline_endpoint_import_key(peer->endpoint, bytes.data(), bytes.size(), &made->key->key);
    if (status < 0) refuse(status, "the key of " + range(memory.addr, memory.len) + " of agent " + agent + " was refused");
    struct tieline_key_info info {};
    info.size = sizeof info;
    status = tieline_key_info(made->key->key, &info);
    if (status < 0) refuse(status, "the key of agent " + agent + " cannot be read");
    if (info.len < memory.len)
        throw Refused(NIXL_ERR_MISMATCH, "agent " + agent + " names " + range(memory.addr, memory.len) + ", and its key covers " +
                                             std::to_string(info.len) + " bytes");
    held.insert(made.get());
    return made.release();
}

Target *Engine::load_own(const Region *region) {
    auto made = std::make_unique<Target>();
    made->own = region;
    const Guard guard(lock);
    held.insert(made.get());
    return made.release();
}

void Engine::unload(Target *target) {
    const Guard guard(lock);
    if (held.erase(target) == 0) throw Refused(NIXL_ERR_INVALID_PARAM, "the metadata of equal memory were unloaded twice");
    delete target;
}
