/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Lists the RDMA devices and opens an event channel of the connection manager. Starts on any machine;
 * without rdma-core it prints the reason and exits with 1.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <rdma-mummy/rdma_cma.h>

int main(void)
{
	struct rdma_event_channel *channel;
	struct ibv_device **devices;
	int count = 0;

	if (rdma_mummy_load()) {
		fprintf(stderr, "hello: %s\n", rdma_mummy_error());
		return 1;
	}

	devices = ibv_get_device_list(&count);
	if (!devices)
		printf("devices: none (%s)\n", strerror(errno));
	for (int n = 0; n < count; n++)
		printf("device: %s\n", ibv_get_device_name(devices[n]));
	if (devices)
		ibv_free_device_list(devices);

	channel = rdma_create_event_channel();
	if (channel) {
		printf("event channel: file descriptor %d\n", channel->fd);
		rdma_destroy_event_channel(channel);
	} else {
		printf("event channel: none (%s)\n", strerror(errno));
	}
	return 0;
}
