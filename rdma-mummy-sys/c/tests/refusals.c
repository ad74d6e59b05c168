/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The result of every kind of function if its library is `missing`, or `old`, which is a library
 * without the function. From several threads, because the first call loads.
 */
#include <rdma-mummy/rdma_verbs.h>
#include <rdma-mummy/rsocket.h>

#include "check.h"

static void *missing(void *unused)
{
	int count = 77;
	union ibv_gid gid;
	struct ibv_device_attr attr;

	CHECK(!rdma_mummy_error());
	CHECK(!ibv_get_device_list(&count) && errno == ENOSYS);
	CHECK(strstr(rdma_mummy_error(), "libibverbs.so.1") && strstr(rdma_mummy_error(), "install"));
	ibv_free_device_list(NULL);
	CHECK(rdma_mummy_error());
	CHECK(ibv_query_device(NULL, &attr) == ENOSYS);
	CHECK(ibv_query_gid(NULL, 1, 0, &gid) == -1 && errno == ENOSYS);
	CHECK(ibv_query_gid_table(NULL, NULL, 0, 0) == -ENOSYS);
	CHECK(strstr(ibv_wc_status_str(IBV_WC_SUCCESS), "unknown"));
	CHECK(ibv_get_device_guid(NULL) == 0);
	CHECK(!rdma_create_event_channel() && errno == ENOSYS && rdma_mummy_error());
	CHECK(rdma_create_id(NULL, NULL, NULL, RDMA_PS_TCP) == -1 && errno == ENOSYS);
	CHECK(rsocket(AF_INET, SOCK_STREAM, 0) == -1 && rfcntl(0, 0) == -1 && rread(0, NULL, 0) == -1);
	CHECK(riowrite(0, NULL, 0, 0, 0) == (size_t)-1);
	CHECK(rdma_mummy_load() == ENOSYS && rdma_mummy_error());
	return unused;
}

static void *old(void *unused)
{
	CHECK(rdma_mummy_load() == 0 && !rdma_mummy_error());
	errno = 0;
	CHECK(!ibv_reg_mr_ex(NULL, NULL) && errno == EOPNOTSUPP);
	CHECK(strstr(rdma_mummy_error(), "`ibv_reg_mr_ex` (added in IBVERBS_1.15, rdma-core 59)"));
	CHECK(ibv_query_port_speed(NULL, 1, NULL) == EOPNOTSUPP && rdma_mummy_error());
	ibv_rate_to_mult(IBV_RATE_5_GBPS);
	CHECK(!rdma_mummy_error());
	return unused;
}

int main(int argc, char **argv)
{
	void *(*check)(void *) = argc > 1 && !strcmp(argv[1], "old") ? old : missing;
	pthread_t threads[8];

	for (int n = 0; n < 8; n++)
		CHECK(!pthread_create(&threads[n], NULL, check, NULL));
	for (int n = 0; n < 8; n++)
		CHECK(!pthread_join(threads[n], NULL));
	return 0;
}
