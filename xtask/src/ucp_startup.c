/* Measures the nanoseconds of ucp_init and ucp_worker_create, for `cargo xtask
   bench`. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

int main(void)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);

    ucp_params_t params;
    memset(&params, 0, sizeof(params));
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features   = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
    ucp_context_h context;
    if (ucp_init(&params, NULL, &context) != UCS_OK) {
        return 1;
    }

    ucp_worker_params_t worker_params;
    memset(&worker_params, 0, sizeof(worker_params));
    worker_params.field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    ucp_worker_h worker;
    if (ucp_worker_create(context, &worker_params, &worker) != UCS_OK) {
        return 1;
    }

    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%lld\n", (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec));
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}
