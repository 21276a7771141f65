/*
 * NIXL's interface in front of an engine. Nothing thrown leaves this file, and what a call refuses is written for the user in words.
 */
#include "engine.h"
#include "installed.h"
#include "words.h"

using words::Level;
using words::say;

namespace {

constexpr const char *NAME = "TIELINE";

class Plugin final : public nixlBackendEngine {
    std::unique_ptr<Engine> engine;

    template <class Call> nixl_status_t guarded(Call call) const noexcept {
        try {
            if (engine->is_inherited())
                throw Refused(NIXL_ERR_NOT_ALLOWED, "this agent belongs to the parent of this forked process. Create an agent here.");
            return call();
        } catch (const Refused &refused) {
            say(Level::Error, refused.what());
            return refused.status;
        } catch (const std::exception &error) {
            say(Level::Error, error.what());
        } catch (...) {
            say(Level::Error, "unknown exception");
        }
        return NIXL_ERR_BACKEND;
    }

public:
    explicit Plugin(const nixlBackendInitParams *params) : nixlBackendEngine(params) {
        try {
            engine = std::make_unique<Engine>(*params);
        } catch (const std::exception &error) {
            say(Level::Error, error.what());
            initErr = true;
        }
    }

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override { return {DRAM_SEG}; }

    nixl_status_t registerMem(const nixlBlobDesc &memory, const nixl_mem_t &kind, nixlBackendMD *&out) override {
        return guarded([&] {
            static constexpr const char *KINDS[] = {"DRAM", "VRAM", "BLK", "OBJ", "FILE"};
            if (kind != DRAM_SEG)
                throw Refused(NIXL_ERR_NOT_SUPPORTED, std::string("memory of kind ") + (kind > DRAM_SEG && kind <= FILE_SEG ? KINDS[kind] : "unknown") +
                                                          " is not supported: this backend moves host memory (DRAM) only. Use another backend for it, such as UCX.");
            out = engine->register_memory(memory);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t deregisterMem(nixlBackendMD *memory) override {
        return guarded([&] {
            engine->deregister_memory(static_cast<Region *>(memory));
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t connect(const std::string &agent) override {
        return guarded([&] {
            engine->connect(agent);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t disconnect(const std::string &agent) override {
        return guarded([&] {
            engine->disconnect(agent);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t unloadMD(nixlBackendMD *target) override {
        return guarded([&] {
            engine->unload(static_cast<Target *>(target));
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
                           const std::string &agent, nixlBackendReqH *&handle, const nixlBackendOptionalArgs *) const override {
        return guarded([&] {
            handle = engine->prepare(operation == NIXL_READ, local, remote, agent);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                           nixlBackendReqH *&handle, const nixlBackendOptionalArgs *options) const override {
        return guarded([&] { return engine->post(*static_cast<Request *>(handle), options); });
    }
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override {
        return guarded([&] { return engine->check(*static_cast<Request *>(handle)); });
    }
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override {
        return guarded([&] {
            engine->release(static_cast<Request *>(handle));
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t getPublicData(const nixlBackendMD *memory, std::string &out) const override {
        return guarded([&] {
            out = engine->public_key(*static_cast<const Region *>(memory));
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t getConnInfo(std::string &out) const override {
        return guarded([&] {
            out = engine->address();
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t loadRemoteConnInfo(const std::string &agent, const std::string &info) override {
        return guarded([&] {
            engine->load_peer(agent, info);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t loadRemoteMD(const nixlBlobDesc &memory, const nixl_mem_t &, const std::string &agent, nixlBackendMD *&out) override {
        return guarded([&] {
            out = engine->load_target(memory, agent);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t loadLocalMD(nixlBackendMD *memory, nixlBackendMD *&out) override {
        return guarded([&] {
            out = engine->load_own(static_cast<Region *>(memory));
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t getNotifs(notif_list_t &list) override {
        return guarded([&] {
            engine->take_notifications(list);
            return NIXL_SUCCESS;
        });
    }
    nixl_status_t genNotif(const std::string &agent, const std::string &text) const override {
        return guarded([&] {
            engine->notify(agent, text);
            return NIXL_SUCCESS;
        });
    }
};

nixlBackendEngine *create(const nixlBackendInitParams *params) {
    try {
        return new Plugin(params);
    } catch (...) {
        say(Level::Error, "no agent: out of memory");
        return nullptr;
    }
}

nixl_b_params_t options() {
    try {
        return Engine::parameters();
    } catch (...) {
        return {};
    }
}

nixl_mem_list_t kinds() {
    try {
        return {DRAM_SEG};
    } catch (...) {
        return {};
    }
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init() {
    static nixlBackendPlugin plugin{1, create, [](nixlBackendEngine *made) { delete made; }, [] { return NAME; }, [] { return TIELINE_NIXL_VERSION; }, options, kinds};
    try {
        const std::string refused = installed::refusal(__builtin_return_address(0));
        if (refused.empty()) return &plugin;
        say(Level::Error, refused);
    } catch (...) {
        say(Level::Error, "out of memory");
    }
    return nullptr;
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}
}
