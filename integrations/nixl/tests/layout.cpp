/*
 * Prints the slots, sizes and offsets of abi.md, from src/nixl.h or, with -DREAL, from NIXL's own headers. Compile it with
 * -fno-access-control, because some fields are private.
 */
#ifdef REAL
#include "backend/backend_plugin.h"
#else
#include "../src/nixl.h"
#endif

#include <cstdio>
#include <cstring>

/* The word of the vtable that a pointer to a virtual method names, by the Itanium C++ ABI. */
template <class Method> size_t word_of(Method method) {
    uintptr_t parts[2];
    static_assert(sizeof method == sizeof parts);
    memcpy(parts, &method, sizeof parts);
#ifdef __aarch64__
    return parts[0] / sizeof(void *) + 2;
#else
    return (parts[0] - 1) / sizeof(void *) + 2;
#endif
}

using List = nixlDescList<nixlMetaDesc>;
using Args = nixlBackendOptionalArgs;
#define SLOT(name) printf("slot %zu %s\n", word_of(&nixlBackendEngine::name), #name)
#define SIZE(record) printf("size %s %zu\n", #record, sizeof(record))
#define FIELD(record, field) printf("field %s.%s %zu\n", #record, #field, offsetof(record, field))

int main() {
    SLOT(supportsRemote);
    SLOT(supportsLocal);
    SLOT(supportsNotif);
    SLOT(getSupportedMems);
    SLOT(registerMem);
    SLOT(deregisterMem);
    SLOT(connect);
    SLOT(disconnect);
    SLOT(unloadMD);
    SLOT(prepXfer);
    SLOT(postXfer);
    SLOT(checkXfer);
    SLOT(releaseReqH);
    using Remote = nixl_status_t (nixlBackendEngine::*)(const nixlDescList<nixlRemoteMetaDesc> &, nixlMemViewH &, const Args *) const;
    using Local = nixl_status_t (nixlBackendEngine::*)(const List &, nixlMemViewH &, const Args *) const;
    printf("slot %zu prepMemView\n", word_of(static_cast<Remote>(&nixlBackendEngine::prepMemView)));
    printf("slot %zu prepMemView\n", word_of(static_cast<Local>(&nixlBackendEngine::prepMemView)));
    SLOT(releaseMemView);
    SLOT(getPublicData);
    SLOT(getConnInfo);
    SLOT(loadRemoteConnInfo);
    SLOT(loadRemoteMD);
    SLOT(loadLocalMD);
    SLOT(getNotifs);
    SLOT(genNotif);
    SLOT(queryMem);
    SLOT(estimateXferCost);
    SIZE(nixlBackendEngine);
    FIELD(nixlBackendEngine, initErr);
    FIELD(nixlBackendEngine, localAgent);
    FIELD(nixlBackendEngine, enableTelemetry_);
    SIZE(nixlBackendInitParams);
    FIELD(nixlBackendInitParams, localAgent);
    FIELD(nixlBackendInitParams, type);
    FIELD(nixlBackendInitParams, customParams);
    FIELD(nixlBackendInitParams, enableProgTh);
    FIELD(nixlBackendInitParams, pthrDelay);
    FIELD(nixlBackendInitParams, syncMode);
    FIELD(nixlBackendInitParams, enableTelemetry_);
    SIZE(nixlBackendOptionalArgs);
    FIELD(nixlBackendOptionalArgs, notifMsg);
    FIELD(nixlBackendOptionalArgs, hasNotif);
    FIELD(nixlBackendOptionalArgs, customParam);
    SIZE(nixlBackendReqH);
    SIZE(nixlBackendMD);
    FIELD(nixlBackendMD, isPrivateMD);
    SIZE(nixlBasicDesc);
    FIELD(nixlBasicDesc, addr);
    FIELD(nixlBasicDesc, len);
    FIELD(nixlBasicDesc, devId);
    SIZE(nixlBlobDesc);
    FIELD(nixlBlobDesc, metaInfo);
    SIZE(nixlMetaDesc);
    FIELD(nixlMetaDesc, metadataP);
    printf("size nixlDescList<T> %zu\n", sizeof(List));
    printf("field nixlDescList<T>.type %zu\n", offsetof(List, type));
    SIZE(nixlBackendPlugin);
    FIELD(nixlBackendPlugin, api_version);
    FIELD(nixlBackendPlugin, create_engine);
    FIELD(nixlBackendPlugin, destroy_engine);
    FIELD(nixlBackendPlugin, get_plugin_name);
    FIELD(nixlBackendPlugin, get_plugin_version);
    FIELD(nixlBackendPlugin, get_backend_options);
    FIELD(nixlBackendPlugin, get_backend_mems);
}
