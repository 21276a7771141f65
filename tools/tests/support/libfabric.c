/* A libfabric that lists the devices of the installed libfabric and twenty more devices, like a host with every kind of network.
 * The twenty devices cannot be opened.
 *
 * Functions whose records have the layout of a later version end the process. The test thereby detects a caller that uses the
 * functions' plain names and reads the result in the older layout. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdlib.h>
#include <string.h>

struct device {
	const char *provider, *fabric, *domain;
	int mr_mode;
	size_t key_size;
	uint64_t order;
};

static const struct device devices[] = {
	{ "cxi", "cxi", "cxi0", FI_MR_ENDPOINT, 8, FI_ORDER_SAS },
	{ "cxi", "cxi", "cxi1", FI_MR_ENDPOINT, 8, FI_ORDER_SAS },
	{ "cxi", "cxi", "cxi2", FI_MR_ENDPOINT, 8, FI_ORDER_SAS },
	{ "cxi", "cxi", "cxi3", FI_MR_ENDPOINT, 8, FI_ORDER_SAS },
	{ "efa", "efa", "rdmap0s6-rdm", FI_MR_VIRT_ADDR, 8, FI_ORDER_SAS },
	{ "efa", "efa-direct", "rdmap0s7-rdm", FI_MR_LOCAL, 8, 0 },
	{ "opx", "OPX-100", "hfi1_0", 0, 8, FI_ORDER_SAS },
	{ "psm3", "RoCE", "irdma0", 0, 8, FI_ORDER_SAS },
	{ "verbs;ofi_rxm", "IB-0xfe80000000000000", "mlx5_0", FI_MR_LOCAL, 4, FI_ORDER_SAS },
	{ "verbs;ofi_rxm", "IB-0xfe80000000000000", "mlx5_1", FI_MR_LOCAL, 4, FI_ORDER_SAS },
	{ "net;ofi_rxm", "10.0.0.0/24", "fab0", 0, 8, FI_ORDER_SAS },
	{ "net;ofi_rxm", "10.0.1.0/24", "fab1", 0, 8, FI_ORDER_SAS },
	{ "udp;ofi_rxd", "10.0.0.0/24", "fab0", 0, 8, FI_ORDER_SAS },
	{ "shm", "shm", "shm", 0, 8, FI_ORDER_SAS },
	{ "sm2", "sm2", "sm2", 0, 8, FI_ORDER_SAS },
	{ "lnx", "lnx", "shm+cxi0", 0, 8, FI_ORDER_SAS },
	{ "tieline", "tieline", "tieline", 0, 8, FI_ORDER_SAS },
	{ "ucx", "ucx", "mlx5_0:1", FI_MR_RAW, 512, FI_ORDER_SAS },
	{ "lpp", "lpp", "lpp0", FI_MR_RMA_EVENT, 8, FI_ORDER_SAS },
	{ "usnic", "10.0.0.0/24", "usnic_0", 0, 8, FI_ORDER_SAS },
};

static void *real(const char *name, const char *version)
{
	static void *library;
	if (!library)
		library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		abort();
	return version ? dlvsym(library, name, version) : dlsym(library, name);
}

static struct fi_info *allocated(void)
{
	struct fi_info *(*dup)(const struct fi_info *) = real("fi_dupinfo", "FABRIC_1.3");
	return dup(NULL);
}

static struct fi_info *offered(const struct device *device)
{
	struct fi_info *info = allocated();
	info->caps = FI_MSG | FI_RMA | FI_MULTI_RECV;
	info->addr_format = FI_ADDR_STR;
	info->tx_attr->msg_order = info->rx_attr->msg_order = device->order;
	info->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	info->tx_attr->iov_limit = info->rx_attr->iov_limit = 4;
	info->ep_attr->type = FI_EP_RDM;
	info->ep_attr->max_msg_size = 1 << 20;
	info->domain_attr->mr_mode = device->mr_mode;
	info->domain_attr->mr_key_size = device->key_size;
	info->domain_attr->av_type = FI_AV_TABLE;
	info->domain_attr->name = strdup(device->domain);
	info->fabric_attr->name = strdup(device->fabric);
	info->fabric_attr->prov_name = strdup(device->provider);
	return info;
}

int old_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		const struct fi_info *hints, struct fi_info **out)
{
	int (*get)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
		   struct fi_info **) = real("fi_getinfo", "FABRIC_1.3");
	struct fi_info **end = out;
	int code = get(version, node, service, flags, hints, out);
	if (code == -FI_ENODATA)
		*out = NULL;
	else if (code)
		return code;
	while (*end)
		end = &(*end)->next;
	if (!hints || hints->caps & FI_ATOMIC)
		return code;
	for (size_t i = 0; i < sizeof(devices) / sizeof(*devices); i++) {
		*end = offered(&devices[i]);
		end = &(*end)->next;
	}
	return 0;
}

struct fi_info *old_dupinfo(const struct fi_info *info)
{
	struct fi_info *(*dup)(const struct fi_info *) = real("fi_dupinfo", "FABRIC_1.3");
	return dup(info);
}

void old_freeinfo(struct fi_info *info)
{
	void (*release)(struct fi_info *) = real("fi_freeinfo", "FABRIC_1.3");
	release(info);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	int (*open)(struct fi_fabric_attr *, struct fid_fabric **, void *) = real("fi_fabric", NULL);
	for (size_t i = 0; i < sizeof(devices) / sizeof(*devices); i++)
		if (!strcmp(devices[i].provider, attr->prov_name))
			return -ENODEV;
	return open(attr, fabric, context);
}

uint32_t fi_version(void)
{
	uint32_t (*version)(void) = real("fi_version", NULL);
	return version();
}

void new_getinfo(void) { abort(); }
void new_dupinfo(void) { abort(); }
void new_freeinfo(void) { abort(); }

__asm__(".symver old_getinfo,fi_getinfo@FABRIC_1.3");
__asm__(".symver old_dupinfo,fi_dupinfo@FABRIC_1.3");
__asm__(".symver old_freeinfo,fi_freeinfo@FABRIC_1.3");
__asm__(".symver new_getinfo,fi_getinfo@@FABRIC_1.9");
__asm__(".symver new_dupinfo,fi_dupinfo@@FABRIC_1.9");
__asm__(".symver new_freeinfo,fi_freeinfo@@FABRIC_1.9");
