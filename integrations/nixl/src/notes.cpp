/*
 * Notifications: messages whose bytes are the sender's name and the text. The header is the name's length.
 *
 * A text that is longer than an eager message is taken into memory of its own. Notifications of one peer keep their order.
 */
#include "engine.h"
#include "words.h"

#include <algorithm>

using words::Level;
using words::say;

std::string Engine::note_bytes(const std::string &text) const {
    std::string bytes;
    bytes.reserve(name.size() + text.size());
    return bytes.append(name).append(text);
}

int32_t Engine::send_note(const Peer &peer, const std::string &bytes, const tieline_how *how, uint64_t *number) {
    return tieline_send(peer.endpoint, MESSAGE_NOTE, name.size(), bytes.data(), bytes.size(), how, number);
}

void Engine::notify(const std::string &agent, const std::string &text) {
    const Guard guard(lock);
    called();
    if (agent == name) {
        notes.emplace_back(agent, text);
        return;
    }
    const auto peer = find(agent);
    std::string bytes = note_bytes(text);
    if (outgoing.empty()) {
        const int32_t status = send_note(*peer, bytes, nullptr, nullptr);
        if (status >= 0) {
            if (status == TIELINE_PENDING) wake_thread();
            return;
        }
        if (status != TIELINE_AGAIN) {
            const std::string words = tieline_error_text();
            const bool ended = tieline_endpoint_error(peer->endpoint, nullptr) < 0;
            throw Refused(ended ? NIXL_ERR_REMOTE_DISCONNECT : status_of(status), "the notification to agent " + agent + " was not sent: " + words);
        }
    }
    outgoing.push_back({peer, std::move(bytes)});
    make_progress();
    wake_thread();
}

void Engine::send_waiting_notes() {
    while (!outgoing.empty()) {
        const Outgoing &note = outgoing.front();
        const int32_t status = send_note(*note.peer, note.bytes, nullptr, nullptr);
        if (status == TIELINE_AGAIN) return;
        if (status < 0) say(Level::Error, "a notification to agent " + note.peer->agent + " was not sent: " + tieline_error_text());
        outgoing.pop_front();
    }
}

void Engine::on_note(void *user, const tieline_message *message) {
    try {
        static_cast<Engine *>(user)->note_arrived(*message);
    } catch (...) {
        say(Level::Error, "a notification was dropped: out of memory");
    }
}

void Engine::note_arrived(const tieline_message &message) {
    uint32_t peer = 0;
    (void)tieline_message_peer(&message, &peer);
    if (message.header > message.len) {
        say(Level::Error, "a notification was dropped: its bytes are malformed");
        return;
    }
    const auto name_len = static_cast<size_t>(message.header);
    if (message.is_announced == 0) {
        const char *bytes = static_cast<const char *>(message.payload);
        const auto waits = [&](const Incoming &note) { return note.peer == peer; };
        if (std::none_of(incoming.begin(), incoming.end(), waits)) {
            notes.emplace_back(std::string(bytes, name_len), std::string(bytes + name_len, message.len - name_len));
        } else {
            incoming.push_back({peer, std::string(bytes, message.len), name_len, nullptr, Incoming::Arrived});
        }
        return;
    }
    tieline_announcement *announcement = nullptr;
    if (tieline_message_announcement(&message, &announcement) < 0) return;
    if (message.len > longest_note) {
        (void)tieline_announcement_refuse(announcement);
        say(Level::Error, "a notification of " + std::to_string(message.len) + " bytes was refused");
        return;
    }
    try {
        incoming.push_back({peer, std::string(message.len, 0), name_len, nullptr, Incoming::Arriving});
    } catch (...) {
        (void)tieline_announcement_refuse(announcement);
        throw;
    }
    Incoming &note = incoming.back();
    tieline_how how{};
    how.size = sizeof how;
    how.tell = TIELINE_TELL_TRACKED;
    how.user = reinterpret_cast<uintptr_t>(&note);
    int32_t status = tieline_context_lend(context, note.bytes.data(), note.bytes.size(), &note.region);
    if (status >= 0) status = tieline_announcement_take(announcement, note.region, 0, note.bytes.size(), &how, nullptr);
    if (status >= 0) return;
    say(Level::Error, std::string("a notification was refused: ") + tieline_error_text());
    (void)tieline_announcement_refuse(announcement);
    note.state = Incoming::Lost;
}

/* Ends the receives that have completed, and hands over what they held up. */
void Engine::take_arrived_notes() {
    tieline_completed ended[16];
    size_t taken = 0;
    do {
        if (tieline_worker_take_completed(worker, ended, sizeof *ended, 16, &taken) < 0 && taken == 0) break;
        for (size_t i = 0; i < taken; i++) {
            auto &note = *reinterpret_cast<Incoming *>(static_cast<uintptr_t>(ended[i].user));
            note.state = ended[i].status < 0 ? Incoming::Lost : Incoming::Arrived;
            if (ended[i].status < 0)
                say(Level::Error, std::string("a notification did not arrive: ") + tieline_status_text(ended[i].status));
        }
    } while (taken == 16);
    hand_over();
}

void Engine::hand_over() {
    std::vector<uint32_t> waiting;
    for (auto note = incoming.begin(); note != incoming.end();) {
        const bool waits = std::find(waiting.begin(), waiting.end(), note->peer) != waiting.end();
        if (note->state == Incoming::Arriving && !waits) waiting.push_back(note->peer);
        /* The memory of a receive is only reused when the library no longer accesses it. */
        const bool is_free = note->state != Incoming::Arriving && (note->region == nullptr || tieline_region_close(note->region) != TIELINE_BUSY);
        if (is_free) note->region = nullptr;
        if (!is_free || waits) {
            ++note;
            continue;
        }
        if (note->state == Incoming::Arrived)
            notes.emplace_back(note->bytes.substr(0, note->name_len), note->bytes.substr(note->name_len));
        note = incoming.erase(note);
    }
}

void Engine::take_notifications(notif_list_t &list) {
    const Guard guard(lock);
    called();
    make_progress();
    serve();
    for (auto &note : notes) list.push_back(std::move(note));
    notes.clear();
}

void Engine::on_failure(void *user, tieline_endpoint *endpoint, const tieline_error *why) {
    try {
        auto &engine = *static_cast<Engine *>(user);
        for (auto &[agent, peer] : engine.peers) {
            if (peer->endpoint != endpoint) continue;
            peer->why = std::string(why->what) + (*why->why != 0 ? std::string(": ") + why->why : "");
            say(Level::Warn, "agent " + agent + " is gone: " + peer->why);
        }
    } catch (...) {
    }
}
