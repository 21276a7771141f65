/* Reads and writes. */
#include "engine.h"
#include "words.h"

#include <algorithm>
#include <cstring>

using words::Level;
using words::say;

namespace {

/* The longest time that `release` waits for canceled operations. */
constexpr auto RELEASE_LIMIT = std::chrono::seconds(1);

tieline_how how_of(const Request &request) {
    tieline_how how{};
    how.size = sizeof how;
    how.tell = TIELINE_TELL_COUNTED;
    how.flags = TIELINE_HOW_NUMBERED;
    how.counter = request.counter;
    return how;
}

tieline_counted counted(const Request &request) {
    tieline_counted values{};
    values.size = sizeof values;
    (void)tieline_counter_read(request.counter, &values);
    return values;
}

bool covers(uintptr_t base, size_t len, const nixlBasicDesc &piece) {
    return piece.addr >= base && piece.addr - base <= len && piece.len <= len - (piece.addr - base);
}

bool continues(const Request::Part &part, const Request::Part &next) {
    return part.key == next.key && part.local == next.local && part.offset + part.len == next.offset &&
           part.local_offset + part.len == next.local_offset;
}

const char *direction(const Request &request) { return request.reads ? "the read from agent " : "the write to agent "; }

} // namespace

Request::~Request() {
    if (list != nullptr) (void)tieline_list_drop(list);
    if (counter != nullptr) (void)tieline_counter_drop(counter);
}

Request *Engine::prepare(bool reads, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &agent) {
    if (local.size() != remote.size() || local.size() == 0)
        throw Refused(NIXL_ERR_INVALID_PARAM, "a transfer of " + std::to_string(local.size()) + " local and " +
                                                  std::to_string(remote.size()) + " remote descriptors");
    auto made = std::make_unique<Request>();
    made->reads = reads;
    for (size_t i = 0; i < local.size(); i++) {
        const nixlMetaDesc &here = local[i], &there = remote[i];
        const auto *region = static_cast<const Region *>(here.metadataP);
        const auto *target = static_cast<const Target *>(there.metadataP);
        if (region == nullptr || target == nullptr || here.len != there.len || !covers(region->base, region->len, here))
            throw Refused(NIXL_ERR_INVALID_PARAM, "descriptor " + std::to_string(i) + " does not lie in its registered memory, or its two lengths differ");
        if (target->own != nullptr) {
            if (agent != name || !covers(target->own->base, target->own->len, there))
                throw Refused(NIXL_ERR_INVALID_PARAM, "descriptor " + std::to_string(i) + " does not lie in memory of agent " + agent);
            auto *near = reinterpret_cast<void *>(here.addr), *far = reinterpret_cast<void *>(there.addr);
            made->copies.push_back(reads ? Request::Copy{near, far, here.len} : Request::Copy{far, near, here.len});
            continue;
        }
        const std::shared_ptr<Key> &key = target->key;
        if (made->keys.empty() || made->keys.back() != key) made->keys.push_back(key);
        if (key->peer->agent != agent || key->peer != made->keys.front()->peer || !covers(key->base, key->len, there))
            throw Refused(NIXL_ERR_INVALID_PARAM, "descriptor " + std::to_string(i) + " does not lie in memory of agent " + agent);
        const Request::Part part{key->key, there.addr - key->base, region->region, here.addr - region->base, here.len};
        if (part.len == 0) continue;
        if (!made->parts.empty() && continues(made->parts.back(), part)) {
            made->parts.back().len += part.len;
        } else {
            made->parts.push_back(part);
        }
    }
    if (!made->copies.empty() && !made->keys.empty())
        throw Refused(NIXL_ERR_INVALID_PARAM, "a transfer with memory of two agents");
    if (made->keys.empty()) return made.release();
    made->peer = made->keys.front()->peer;
    const Guard guard(lock);
    try {
        if (is_broken || made->peer->gone) throw Refused(NIXL_ERR_REMOTE_DISCONNECT, "agent " + agent + " was disconnected");
        const int32_t status = tieline_worker_counter(worker, &made->counter);
        if (status < 0) refuse(status, "no counter");
        list_parts(*made);
        requests.insert(made.get());
    } catch (...) {
        made.reset(); /* Under the lock, because the request shares keys. */
        throw;
    }
    return made.release();
}

nixl_status_t Engine::post(Request &request, const nixlBackendOptionalArgs *options) {
    const bool has_note = options != nullptr && options->hasNotif;
    if (request.peer == nullptr) {
        for (const Request::Copy &copy : request.copies) memmove(copy.to, copy.from, copy.len);
        if (has_note) notify(name, options->notifMsg);
        return request.status = NIXL_SUCCESS;
    }
    const Guard guard(lock);
    called();
    if (request.active) throw Refused(NIXL_ERR_REPOST_ACTIVE, direction(request) + request.peer->agent + " is still in progress");
    if (request.is_stale) throw Refused(NIXL_ERR_NOT_FOUND, direction(request) + request.peer->agent + " uses local memory that was deregistered");
    request.has_note = has_note;
    request.note.clear();
    if (has_note) request.note = note_bytes(options->notifMsg);
    request.note_sent = request.note_waits = request.canceled = false;
    request.next = 0;
    request.failed = 0;
    request.numbers.clear();
    request.active = true;
    request.status = NIXL_IN_PROG;
    post_more(request);
    if (request.next == request.parts.size() && request.numbers.empty() && request.failed == 0 && !has_note) {
        /* The usual request between processes of one host: its operations were complete when their posts returned. */
        request.active = false;
        return request.status = NIXL_SUCCESS;
    }
    wanting.push_back(&request);
    const nixl_status_t status = settle(request);
    if (status == NIXL_IN_PROG) wake_thread();
    return status;
}

/* Makes one operation of several parts. */
void Engine::list_parts(Request &request) {
    if (request.parts.size() < 2) return;
    std::vector<tieline_descriptor> all;
    all.reserve(request.parts.size());
    for (const Request::Part &part : request.parts)
        all.push_back({part.local, part.local_offset, nullptr, part.len, part.key, part.offset});
    const int32_t status = tieline_list_prepare(request.peer->endpoint, request.reads ? TIELINE_LIST_GET : TIELINE_LIST_PUT, all.data(), all.size(), &request.list);
    if (status < 0) refuse(status, direction(request) + request.peer->agent);
}

/* A prepared list keeps its regions open, so it ends when one of them is deregistered. */
void Engine::forget_list(Request &request) {
    request.is_stale = true;
    if (request.list != nullptr) (void)tieline_list_drop(request.list);
    request.list = nullptr;
}

/* Posts the next operation of a request, which may consist of several parts. */
int32_t Engine::post_next(Request &request, const tieline_how &how, uint64_t *number, size_t *posted) {
    if (request.list != nullptr) {
        *posted = request.parts.size();
        return tieline_list_post(request.list, &how, number);
    }
    *posted = 1;
    const Request::Part &part = request.parts[request.next];
    return request.reads ? tieline_get(part.key, part.offset, part.local, part.local_offset, part.len, &how, number)
                         : tieline_put(part.key, part.offset, part.local, part.local_offset, part.len, &how, number);
}

/* Posts as many parts as there is room for. */
void Engine::post_more(Request &request) {
    const tieline_how how = how_of(request);
    while (request.next < request.parts.size() && request.failed == 0) {
        uint64_t number = 0;
        size_t posted = 0;
        const int32_t status = post_next(request, how, &number, &posted);
        if (status == TIELINE_AGAIN) return;
        if (status < 0) {
            (void)failure(request, status, tieline_error_text());
            return;
        }
        if (status == TIELINE_PENDING) request.numbers.push_back(number);
        request.next += posted;
    }
}

/* Keeps the first failure, in words and as the status with which the request will end. */
nixl_status_t Engine::failure(Request &request, int32_t status, const std::string &words) {
    if (request.failed != 0) return request.status;
    request.failed = status;
    const Peer &peer = *request.peer;
    tieline_error why{};
    why.size = sizeof why;
    const bool ended = peer.gone || is_broken || tieline_endpoint_error(peer.endpoint, &why) < 0;
    const std::string reason = peer.gone ? "it was disconnected" : !peer.why.empty() ? peer.why : words;
    if (!request.canceled) say(Level::Error, direction(request) + peer.agent + " has failed: " + reason);
    const nixl_status_t by_itself = status_of(status);
    request.status = ended ? NIXL_ERR_REMOTE_DISCONNECT : by_itself;
    return request.status;
}

/*
 * Advances a request, and returns its status. A request ends when none of its operations is pending: whatever its outcome, its
 * memory is then the caller's.
 */
nixl_status_t Engine::settle(Request &request) {
    if (!request.active) return request.status;
    if (request.next < request.parts.size() && request.failed == 0 && !request.canceled) post_more(request);
    tieline_counted values = counted(request);
    if (request.has_note && !request.note_sent && !request.note_waits && values.pending != 0) follow(request);
    if (request.next == request.parts.size() && (!request.has_note || request.note_sent)) std::erase(wanting, &request);
    if (values.failed_since_mark != 0)
        (void)failure(request, values.first_failure, tieline_status_text(values.first_failure));
    if (request.failed != 0 && values.pending != 0) cancel(request);
    if (values.pending != 0) return NIXL_IN_PROG;
    if (request.failed != 0) return end(request, request.status);
    if (request.canceled) return end(request, NIXL_ERR_CANCELED);
    if (request.next < request.parts.size()) return NIXL_IN_PROG;
    if (request.has_note && !request.note_sent) {
        const tieline_how how = how_of(request);
        uint64_t number = 0;
        const int32_t status = send_note(*request.peer, request.note, &how, &number);
        if (status == TIELINE_AGAIN) return NIXL_IN_PROG;
        if (status < 0) return end(request, failure(request, status, tieline_error_text()));
        if (status == TIELINE_PENDING) request.numbers.push_back(number);
        request.note_sent = true;
        return settle(request);
    }
    return end(request, NIXL_SUCCESS);
}

/*
 * Hands the notification to the library, which sends it when the operations are complete at the target. A long one, or one to a peer
 * with an older library, waits here until they are.
 */
void Engine::follow(Request &request) {
    if (request.next < request.parts.size() || request.failed != 0 || request.canceled) return;
    tieline_limits limits{};
    limits.size = sizeof limits;
    request.note_waits = tieline_endpoint_limits(request.peer->endpoint, &limits) < 0 || request.note.size() > limits.max_message;
    if (request.note_waits) return;
    const tieline_how how = how_of(request);
    tieline_followed after{};
    after.size = sizeof after;
    after.counter = request.counter;
    uint64_t number = 0;
    const int32_t status = tieline_notify(request.peer->endpoint, &after, MESSAGE_NOTE, name.size(), request.note.data(), request.note.size(), &how, &number);
    if (status == TIELINE_PENDING) request.numbers.push_back(number);
    request.note_sent = status >= 0;
    request.note_waits = status < 0;
}

nixl_status_t Engine::end(Request &request, nixl_status_t status) {
    request.active = false;
    request.status = status;
    /* The counter reports the failures since its mark, and the request may be posted again. */
    if (status != NIXL_SUCCESS) (void)tieline_counter_mark(request.counter);
    std::erase(wanting, &request);
    return status;
}

nixl_status_t Engine::check(Request &request) {
    if (request.peer == nullptr) return request.status;
    const Guard guard(lock);
    called();
    if (request.active) make_progress();
    return settle(request);
}

void Engine::cancel(Request &request) {
    if (request.canceled) return;
    request.canceled = true;
    for (const uint64_t number : request.numbers) (void)tieline_worker_cancel_number(worker, number);
}

void Engine::release(Request *request) {
    if (request->peer == nullptr) {
        delete request;
        return;
    }
    const Guard guard(lock);
    called();
    if (request->active) {
        cancel(*request);
        const auto until = std::chrono::steady_clock::now() + RELEASE_LIMIT;
        while (settle(*request) == NIXL_IN_PROG) {
            if (std::chrono::steady_clock::now() > until)
                throw Refused(NIXL_ERR_REPOST_ACTIVE, direction(*request) + request->peer->agent +
                                                          " is canceled but has not ended: its memory is still in use. Release it again later.");
            make_progress();
        }
    }
    requests.erase(request);
    delete request;
}
