/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * One process with rdma-core-mummy, libibverbs and librdmacm in it. Compiled twice: with rdma-core's own
 * headers as `real`, with ours as `mummy`; the second has main.
 */
#ifdef MUMMY
#include <rdma-mummy/rdma_cma.h>
#define SIDE(name) mummy_##name
#else
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#define SIDE(name) real_##name
#endif

#include "check.h"

int real_devices(void), mummy_devices(void);
int real_channel(void), mummy_channel(void);
const char *real_status(void), *mummy_status(void);
void *real_function(void), *mummy_function(void);

/* The number of devices, or the negative error number. */
int SIDE(devices)(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list)
		return -errno;
	ibv_free_device_list(list);
	return count;
}

/* 0 if a channel could be opened, else the error number. */
int SIDE(channel)(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	if (!channel)
		return errno;
	rdma_destroy_event_channel(channel);
	return 0;
}

const char *SIDE(status)(void)
{
	return ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR);
}

void *SIDE(function)(void)
{
	return (void *)(uintptr_t)ibv_open_device;
}

#ifdef MUMMY
int main(void)
{
	CHECK(real_function() != mummy_function());
	CHECK(real_devices() == mummy_devices() && !rdma_mummy_error());
	CHECK(real_channel() == mummy_channel() && !rdma_mummy_error());
	/* The same pointer, because both use one libibverbs. */
	CHECK(real_status() == mummy_status());
	printf("devices %d, channel %d, \"%s\"\n", mummy_devices(), mummy_channel(), mummy_status());
	return 0;
}
#endif
