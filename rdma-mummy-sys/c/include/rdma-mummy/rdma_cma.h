/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * librdmacm's connection manager, loaded at run time.
 */
#ifndef RDMA_MUMMY_RDMA_CMA_H
#define RDMA_MUMMY_RDMA_CMA_H

#if defined(RDMA_CMA_H) || defined(INFINIBAND_SA_H)
#error "rdma-core's <rdma/rdma_cma.h> was included first: include <rdma-mummy/rdma_cma.h> in its place, or before it"
#endif
#define RDMA_CMA_H
#define INFINIBAND_SA_H

#include "verbs.h"

#include "abi/rdma_cma.h"

RDMA_MUMMY_BEGIN

static inline struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id)
{
	return &id->route.addr.src_addr;
}

static inline struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id)
{
	return &id->route.addr.dst_addr;
}

RDMA_MUMMY_END

#endif
