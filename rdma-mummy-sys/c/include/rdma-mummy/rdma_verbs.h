/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The verbs of librdmacm: posting and polling by connection identifier.
 */
#ifndef RDMA_MUMMY_RDMA_VERBS_H
#define RDMA_MUMMY_RDMA_VERBS_H

#ifdef RDMA_VERBS_H
#error "rdma-core's <rdma/rdma_verbs.h> was included first: include <rdma-mummy/rdma_verbs.h> in its place, or before it"
#endif
#define RDMA_VERBS_H

#include <assert.h>

#include "rdma_cma.h"

#include "abi/rdma_verbs.h"

RDMA_MUMMY_BEGIN

/* Converts the verbs' result, an error number, to librdmacm's: -1 and errno. */
static inline int rdma_seterrno(int error)
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

/* Memory. */
static inline struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length)
{
	return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE);
}

static inline struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length)
{
	return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

static inline struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length)
{
	return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static inline int rdma_dereg_mr(struct ibv_mr *mr)
{
	return rdma_seterrno(ibv_dereg_mr(mr));
}

/* Building blocks of the functions below. */
static inline struct ibv_sge rdma_mummy_sge(void *addr, size_t length, const struct ibv_mr *mr)
{
	struct ibv_sge sge;

	sge.addr = (uintptr_t)addr;
	sge.length = (uint32_t)length;
	sge.lkey = mr ? mr->lkey : 0;
	return sge;
}

static inline struct ibv_send_wr rdma_mummy_send_wr(void *context, struct ibv_sge *list, int count,
						    enum ibv_wr_opcode opcode, int flags)
{
	struct ibv_send_wr wr;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = (uintptr_t)context;
	wr.sg_list = list;
	wr.num_sge = count;
	wr.opcode = opcode;
	wr.send_flags = (unsigned int)flags;
	return wr;
}

static inline int rdma_mummy_post(struct rdma_cm_id *id, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return rdma_seterrno(ibv_post_send(id->qp, wr, &bad));
}

/* Sleeps on the channel between two polls, and polls again after arming it, because a completion that
 * arrived in between causes no event. */
static inline int rdma_mummy_wait(struct ibv_cq *cq, struct ibv_comp_channel *channel, struct ibv_wc *wc)
{
	int armed = 0;

	for (;;) {
		struct ibv_cq *from;
		void *context;
		int found = ibv_poll_cq(cq, 1, wc);

		if (found > 0)
			return found;
		if (found < 0)
			return rdma_seterrno(found == -1 ? EIO : -found);
		if (!armed) {
			int error = ibv_req_notify_cq(cq, 0);

			if (error)
				return rdma_seterrno(error);
		} else {
			if (ibv_get_cq_event(channel, &from, &context))
				return -1;
			ibv_ack_cq_events(from, 1);
		}
		armed = !armed;
	}
}

/* Posting with a list of buffers. */
static inline int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge)
{
	struct ibv_recv_wr wr, *bad;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = (uintptr_t)context;
	wr.sg_list = sgl;
	wr.num_sge = nsge;
	return rdma_seterrno(id->srq ? ibv_post_srq_recv(id->srq, &wr, &bad) : ibv_post_recv(id->qp, &wr, &bad));
}

static inline int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags)
{
	struct ibv_send_wr wr = rdma_mummy_send_wr(context, sgl, nsge, IBV_WR_SEND, flags);

	return rdma_mummy_post(id, &wr);
}

static inline int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
				  uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_send_wr wr = rdma_mummy_send_wr(context, sgl, nsge, IBV_WR_RDMA_READ, flags);

	wr.wr.rdma.remote_addr = remote_addr;
	wr.wr.rdma.rkey = rkey;
	return rdma_mummy_post(id, &wr);
}

static inline int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl, int nsge, int flags,
				   uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_send_wr wr = rdma_mummy_send_wr(context, sgl, nsge, IBV_WR_RDMA_WRITE, flags);

	wr.wr.rdma.remote_addr = remote_addr;
	wr.wr.rdma.rkey = rkey;
	return rdma_mummy_post(id, &wr);
}

/* Posting with one buffer. */
static inline int rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = rdma_mummy_sge(addr, length, mr);

	assert((char *)addr >= (char *)mr->addr);
	assert((char *)addr + length <= (char *)mr->addr + mr->length);
	return rdma_post_recvv(id, context, &sge, 1);
}

static inline int rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
				 int flags)
{
	struct ibv_sge sge = rdma_mummy_sge(addr, length, mr);

	return rdma_post_sendv(id, context, &sge, 1, flags);
}

static inline int rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
				 int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = rdma_mummy_sge(addr, length, mr);

	return rdma_post_readv(id, context, &sge, 1, flags, remote_addr, rkey);
}

static inline int rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length, struct ibv_mr *mr,
				  int flags, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = rdma_mummy_sge(addr, length, mr);

	return rdma_post_writev(id, context, &sge, 1, flags, remote_addr, rkey);
}

static inline int rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr, size_t length,
				    struct ibv_mr *mr, int flags, struct ibv_ah *ah, uint32_t remote_qpn)
{
	struct ibv_sge sge = rdma_mummy_sge(addr, length, mr);
	struct ibv_send_wr wr = rdma_mummy_send_wr(context, &sge, 1, IBV_WR_SEND, flags);

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = remote_qpn;
	wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	return rdma_mummy_post(id, &wr);
}

/* Waiting for one completion. */
static inline int rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	return rdma_mummy_wait(id->send_cq, id->send_cq_channel, wc);
}

static inline int rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
	return rdma_mummy_wait(id->recv_cq, id->recv_cq_channel, wc);
}

RDMA_MUMMY_END

#endif
