/* By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit. */

#ifndef RDMA_MUMMY_ABI_RDMA_VERBS_H
#define RDMA_MUMMY_ABI_RDMA_VERBS_H

#include "../base.h"

RDMA_MUMMY_BEGIN

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr) RDMA_MUMMY_SYMBOL(rdma_create_srq);

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr) RDMA_MUMMY_SYMBOL(rdma_create_srq_ex);

void rdma_destroy_srq(struct rdma_cm_id *id) RDMA_MUMMY_SYMBOL(rdma_destroy_srq);

RDMA_MUMMY_END

#endif
