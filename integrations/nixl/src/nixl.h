/*
 * The types that cross NIXL's plug-in interface 1, declared from the tables in ../abi.md.
 *
 * The names of classes and methods are those of NIXL, so that a reader finds them. Everything here is hidden: the plug-in uses its
 * own vtable and its own bodies, and exports neither.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pthread.h>

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };
enum nixl_status_t {
    NIXL_IN_PROG = 1,
    NIXL_SUCCESS = 0,
    NIXL_ERR_NOT_POSTED = -1,
    NIXL_ERR_INVALID_PARAM = -2,
    NIXL_ERR_BACKEND = -3,
    NIXL_ERR_NOT_FOUND = -4,
    NIXL_ERR_MISMATCH = -5,
    NIXL_ERR_NOT_ALLOWED = -6,
    NIXL_ERR_REPOST_ACTIVE = -7,
    NIXL_ERR_UNKNOWN = -8,
    NIXL_ERR_NOT_SUPPORTED = -9,
    NIXL_ERR_REMOTE_DISCONNECT = -10,
    NIXL_ERR_CANCELED = -11,
    NIXL_ERR_NO_TELEMETRY = -12,
};
enum class nixl_cost_t { ANALYTICAL_BACKEND = 0 };

using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using notif_list_t = std::vector<std::pair<std::string, std::string>>;
using nixlMemViewH = void *;
struct nixlAgentOptionalArgs;

class nixlBasicDesc {
public:
    uintptr_t addr;
    size_t len;
    uint64_t devId;
};

class nixlBlobDesc : public nixlBasicDesc {
public:
    std::string metaInfo;
};

class nixlBackendMD {
protected:
    bool isPrivateMD;

public:
    explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private) {}
    virtual ~nixlBackendMD() = default;
};

class nixlBackendReqH {
public:
    virtual ~nixlBackendReqH() = default;
};

class nixlMetaDesc : public nixlBasicDesc {
public:
    nixlBackendMD *metadataP;
};
struct nixlRemoteMetaDesc;

/* A list that NIXL made. The plug-in reads it, and never makes, copies or destroys one. */
template <class T> class nixlDescList {
    void *vtable;
    nixl_mem_t type;
    std::vector<T> descs;

public:
    nixlDescList() = delete;
    nixlDescList(const nixlDescList &) = delete;
    nixl_mem_t getType() const { return type; }
    size_t size() const { return descs.size(); }
    const T &operator[](size_t index) const { return descs[index]; }
};
using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;

struct nixlBackendOptionalArgs {
    std::string notifMsg;
    bool hasNotif = false;
    std::string customParam;
};

/* What NIXL passes to create_engine. */
class nixlBackendInitParams {
public:
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    uint64_t pthrDelay;
    int32_t syncMode;
    bool enableTelemetry_;
};

class nixlBackendEngine {
    std::string backendType;
    nixl_b_params_t customParams;
    /* A vector of telemetry events: always empty here, so NIXL moves nothing out of it. */
    void *telemetryEvents[3] = {nullptr, nullptr, nullptr};
    pthread_mutex_t telemetryMutex = PTHREAD_MUTEX_INITIALIZER;

protected:
    bool initErr = false;
    const std::string localAgent;
    const bool enableTelemetry_;

public:
    explicit nixlBackendEngine(const nixlBackendInitParams *params)
        : backendType(params->type), customParams(*params->customParams), localAgent(params->localAgent),
          enableTelemetry_(params->enableTelemetry_) {}
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    void operator=(const nixlBackendEngine &) = delete;

    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *) = 0;
    virtual nixl_status_t connect(const std::string &) = 0;
    virtual nixl_status_t disconnect(const std::string &) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                                   nixlBackendReqH *&, const nixlBackendOptionalArgs *) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
                                   nixlBackendReqH *&, const nixlBackendOptionalArgs *) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;
    virtual nixl_status_t prepMemView(const nixlDescList<nixlRemoteMetaDesc> &, nixlMemViewH &, const nixlBackendOptionalArgs *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const nixlBackendOptionalArgs *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual void releaseMemView(nixlMemViewH) const {}
    virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const { return NIXL_ERR_BACKEND; }
    virtual nixl_status_t getConnInfo(std::string &) const { return NIXL_ERR_BACKEND; }
    virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &) { return NIXL_ERR_BACKEND; }
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &, const std::string &, nixlBackendMD *&) {
        return NIXL_ERR_BACKEND;
    }
    virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&) { return NIXL_ERR_BACKEND; }
    virtual nixl_status_t getNotifs(notif_list_t &) { return NIXL_ERR_BACKEND; }
    virtual nixl_status_t genNotif(const std::string &, const std::string &) const { return NIXL_ERR_BACKEND; }
    virtual nixl_status_t queryMem(const nixlDescList<nixlBlobDesc> &, std::vector<nixl_query_resp_t> &) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &,
                                           const std::string &, nixlBackendReqH *const &, std::chrono::microseconds &,
                                           std::chrono::microseconds &, nixl_cost_t &, const nixlAgentOptionalArgs *) const {
        return NIXL_ERR_NOT_SUPPORTED;
    }
};

struct nixlBackendPlugin {
    int32_t api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};

static_assert(sizeof(nixlBackendEngine) == 168 + sizeof(pthread_mutex_t));
static_assert(sizeof(nixlBackendInitParams) == 96);
static_assert(sizeof(nixlBackendOptionalArgs) == 72);
static_assert(sizeof(nixlBackendReqH) == 8);
static_assert(sizeof(nixlBackendMD) == 16);
static_assert(sizeof(nixlBasicDesc) == 24);
static_assert(sizeof(nixlBlobDesc) == 56);
static_assert(sizeof(nixlMetaDesc) == 32);
static_assert(sizeof(nixl_meta_dlist_t) == 40);
static_assert(sizeof(nixlBackendPlugin) == 56);
