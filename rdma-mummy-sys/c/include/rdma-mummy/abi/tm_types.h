/* By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit. */

#ifndef RDMA_MUMMY_ABI_TM_TYPES_H
#define RDMA_MUMMY_ABI_TM_TYPES_H

#include <stdint.h>
#include "../base.h"

RDMA_MUMMY_BEGIN

struct ibv_rvh;
struct ibv_tmh;

enum ibv_tmh_op {
	IBV_TMH_NO_TAG = 0,
	IBV_TMH_RNDV = 1,
	IBV_TMH_FIN = 2,
	IBV_TMH_EAGER = 3,
};

struct ibv_tmh {
	uint8_t opcode;
	uint8_t reserved[3];
	__be32 app_ctx;
	__be64 tag;
};

struct ibv_rvh {
	__be64 va;
	__be32 rkey;
	__be32 len;
};

RDMA_MUMMY_END

#endif
