/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * libibverbs, loaded at run time. The types and the exported functions are generated (abi/verbs.h);
 * this file has the functions that rdma-core defines in its header.
 */
#ifndef RDMA_MUMMY_VERBS_H
#define RDMA_MUMMY_VERBS_H

#ifdef INFINIBAND_VERBS_H
#error "rdma-core's <infiniband/verbs.h> was included first: include <rdma-mummy/verbs.h> in its place, or before it"
#endif
/* A third header that includes the original gets this one instead. */
#define INFINIBAND_VERBS_H

#include "abi/verbs.h"

RDMA_MUMMY_BEGIN

#define IBV_ALLOCATOR_USE_DEFAULT ((void *)-1)

/* The value in place of an operation that marks a context inside of a verbs_context. */
#define __VERBS_ABI_IS_EXTENDED ((void *)UINTPTR_MAX)

#define vext_field_avail(type, field, size) (offsetof(type, field) < (size))

/* The struct around a context, or NULL if the library allocated none. */
static inline struct verbs_context *verbs_get_ctx(struct ibv_context *context)
{
	if (context->abi_compat != __VERBS_ABI_IS_EXTENDED)
		return NULL;
	return (struct verbs_context *)((char *)context - offsetof(struct verbs_context, context));
}

/* Whether the library's struct, which grows at its front, contains the last `need` bytes of ours. */
static inline struct verbs_context *rdma_mummy_extended(struct ibv_context *context, size_t need)
{
	struct verbs_context *extended = verbs_get_ctx(context);

	return extended && extended->sz >= need ? extended : NULL;
}

/* The struct around a context if it has an operation, else NULL. */
#define verbs_get_ctx_op(context, op)                                                              \
	__extension__({                                                                            \
		struct verbs_context *extended_ = rdma_mummy_extended(                             \
			context, sizeof(struct verbs_context) - offsetof(struct verbs_context, op)); \
		extended_ && extended_->op ? extended_ : NULL;                                     \
	})

/* An operation of verbs_context that creates an object. */
#define RDMA_MUMMY_MAKES(object, name, op, context, parameters, arguments)     \
	static inline object *name parameters                                  \
	{                                                                      \
		struct verbs_context *extended = verbs_get_ctx_op(context, op); \
		if (!extended) {                                               \
			rdma_mummy_unsupported();                              \
			return NULL;                                           \
		}                                                              \
		return extended->op arguments;                                 \
	}

/* An operation of verbs_context that returns 0 or an error's number. */
#define RDMA_MUMMY_DOES(name, op, context, parameters, arguments)              \
	static inline int name parameters                                      \
	{                                                                      \
		struct verbs_context *extended = verbs_get_ctx_op(context, op); \
		return extended ? extended->op arguments : rdma_mummy_unsupported(); \
	}

/* An operation in the object itself, present if the object was created with it. */
#define RDMA_MUMMY_GIVES(result, name, operation, parameters, arguments) \
	static inline result name parameters { return operation arguments; }

#define RDMA_MUMMY_CALLS(name, operation, parameters, arguments) \
	static inline void name parameters { operation arguments; }

#define RDMA_MUMMY_WR(name, parameters, arguments) \
	RDMA_MUMMY_CALLS(ibv_##name, qp->name, parameters, arguments)

#define RDMA_MUMMY_WC(result, field) \
	RDMA_MUMMY_GIVES(result, ibv_wc_##field, cq->field, (struct ibv_cq_ex *cq), (cq))

/* Posting to a queue pair that was created with send operations. */
RDMA_MUMMY_WR(wr_start, (struct ibv_qp_ex *qp), (qp))
RDMA_MUMMY_WR(wr_abort, (struct ibv_qp_ex *qp), (qp))
RDMA_MUMMY_GIVES(int, ibv_wr_complete, qp->wr_complete, (struct ibv_qp_ex *qp), (qp))
RDMA_MUMMY_WR(wr_send, (struct ibv_qp_ex *qp), (qp))
RDMA_MUMMY_WR(wr_send_imm, (struct ibv_qp_ex *qp, __be32 imm_data), (qp, imm_data))
RDMA_MUMMY_WR(wr_send_inv, (struct ibv_qp_ex *qp, uint32_t rkey), (qp, rkey))
RDMA_MUMMY_WR(wr_send_tso, (struct ibv_qp_ex *qp, void *hdr, uint16_t hdr_sz, uint16_t mss), (qp, hdr, hdr_sz, mss))
RDMA_MUMMY_WR(wr_rdma_read, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr), (qp, rkey, addr))
RDMA_MUMMY_WR(wr_rdma_write, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr), (qp, rkey, addr))
RDMA_MUMMY_WR(wr_rdma_write_imm, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm_data),
	      (qp, rkey, addr, imm_data))
RDMA_MUMMY_WR(wr_atomic_cmp_swp,
	      (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap),
	      (qp, rkey, addr, compare, swap))
RDMA_MUMMY_WR(wr_atomic_fetch_add, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add),
	      (qp, rkey, addr, add))
RDMA_MUMMY_WR(wr_atomic_write, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *value),
	      (qp, rkey, addr, value))
RDMA_MUMMY_WR(wr_flush,
	      (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length, uint8_t type, uint8_t level),
	      (qp, rkey, addr, length, type, level))
RDMA_MUMMY_WR(wr_bind_mw,
	      (struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *bind_info),
	      (qp, mw, rkey, bind_info))
RDMA_MUMMY_WR(wr_local_inv, (struct ibv_qp_ex *qp, uint32_t rkey), (qp, rkey))
RDMA_MUMMY_WR(wr_set_ud_addr, (struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey),
	      (qp, ah, qpn, qkey))
RDMA_MUMMY_WR(wr_set_xrc_srqn, (struct ibv_qp_ex *qp, uint32_t srqn), (qp, srqn))
RDMA_MUMMY_WR(wr_set_inline_data, (struct ibv_qp_ex *qp, void *addr, size_t length), (qp, addr, length))
RDMA_MUMMY_WR(wr_set_inline_data_list, (struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list),
	      (qp, count, list))
RDMA_MUMMY_WR(wr_set_sge, (struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length),
	      (qp, lkey, addr, length))
RDMA_MUMMY_WR(wr_set_sge_list, (struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list), (qp, count, list))

/* Polling an extended completion queue. */
static inline struct ibv_cq *ibv_cq_ex_to_cq(struct ibv_cq_ex *cq)
{
	return (struct ibv_cq *)cq;
}

RDMA_MUMMY_GIVES(int, ibv_start_poll, cq->start_poll, (struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr),
		   (cq, attr))
RDMA_MUMMY_GIVES(int, ibv_next_poll, cq->next_poll, (struct ibv_cq_ex *cq), (cq))
RDMA_MUMMY_CALLS(ibv_end_poll, cq->end_poll, (struct ibv_cq_ex *cq), (cq))
RDMA_MUMMY_WC(enum ibv_wc_opcode, read_opcode)
RDMA_MUMMY_WC(uint32_t, read_vendor_err)
RDMA_MUMMY_WC(uint32_t, read_byte_len)
RDMA_MUMMY_WC(__be32, read_imm_data)
RDMA_MUMMY_WC(uint32_t, read_qp_num)
RDMA_MUMMY_WC(uint32_t, read_src_qp)
RDMA_MUMMY_WC(unsigned int, read_wc_flags)
RDMA_MUMMY_WC(uint32_t, read_slid)
RDMA_MUMMY_WC(uint8_t, read_sl)
RDMA_MUMMY_WC(uint8_t, read_dlid_path_bits)
RDMA_MUMMY_WC(uint64_t, read_completion_ts)
RDMA_MUMMY_WC(uint64_t, read_completion_wallclock_ns)
RDMA_MUMMY_WC(uint16_t, read_cvlan)
RDMA_MUMMY_WC(uint32_t, read_flow_tag)
/* The invalidated key takes the place of the immediate data, in the host's byte order. */
RDMA_MUMMY_GIVES(uint32_t, ibv_wc_read_invalidated_rkey, cq->read_imm_data, (struct ibv_cq_ex *cq), (cq))
RDMA_MUMMY_CALLS(ibv_wc_read_tm_info, cq->read_tm_info,
		   (struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info), (cq, tm_info))

/* The classic data path. */
RDMA_MUMMY_GIVES(int, ibv_poll_cq, cq->context->ops.poll_cq, (struct ibv_cq *cq, int count, struct ibv_wc *wc),
		   (cq, count, wc))
RDMA_MUMMY_GIVES(int, ibv_req_notify_cq, cq->context->ops.req_notify_cq, (struct ibv_cq *cq, int solicited_only),
		   (cq, solicited_only))
RDMA_MUMMY_GIVES(int, ibv_post_send, qp->context->ops.post_send,
		   (struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr), (qp, wr, bad_wr))
RDMA_MUMMY_GIVES(int, ibv_post_recv, qp->context->ops.post_recv,
		   (struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr), (qp, wr, bad_wr))
RDMA_MUMMY_GIVES(int, ibv_post_srq_recv, srq->context->ops.post_srq_recv,
		   (struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr), (srq, wr, bad_wr))
RDMA_MUMMY_GIVES(int, ibv_post_wq_recv, wq->post_recv,
		   (struct ibv_wq *wq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr), (wq, wr, bad_wr))

/* Devices, ports, addresses. */
static inline int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr)
{
	struct verbs_context *extended = verbs_get_ctx_op(context, query_port);

	if (extended)
		return extended->query_port(context, port_num, attr, sizeof(*attr));
	/* The exported function writes only the members of the first version of the struct. */
	memset(attr, 0, sizeof(*attr));
	return rdma_mummy_ibv_query_port(context, port_num, (struct _compat_ibv_port_attr *)attr);
}

static inline int ibv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
				      struct ibv_device_attr_ex *attr)
{
	struct verbs_context *extended = verbs_get_ctx_op(context, query_device_ex);
	int error = EOPNOTSUPP;

	if (input && input->comp_mask)
		return EINVAL;
	if (extended)
		error = extended->query_device_ex(context, input, attr, sizeof(*attr));
	if (error != EOPNOTSUPP && error != ENOSYS)
		return error;
	/* The classic query returns at least the classic attributes. */
	memset(attr, 0, sizeof(*attr));
	return ibv_query_device(context, &attr->orig_attr);
}

static inline int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
				   struct ibv_gid_entry *entry, uint32_t flags)
{
	return _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, sizeof(*entry));
}

static inline ssize_t ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
					  size_t max_entries, uint32_t flags)
{
	return _ibv_query_gid_table(context, entries, max_entries, flags, sizeof(*entries));
}

static inline int ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps)
{
	return _ibv_query_comp_cntr_caps(context, caps, sizeof(*caps));
}

RDMA_MUMMY_DOES(ibv_query_rt_values_ex, query_rt_values, context,
		(struct ibv_context *context, struct ibv_values_ex *values), (context, values))

static inline int ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type type)
{
	return (caps >> type) & 1;
}

/* Folds the 20 bits of a flow label into the 14 free bits of a RoCE source port. */
static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t flow_label)
{
	uint32_t low = flow_label & 0x3fff, high = (flow_label & IB_GRH_FLOWLABEL_MASK) >> 14;

	return (uint16_t)((low ^ high) | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN);
}

/*
 * Memory. Optional access flags need a function that older libraries lack. Without them, every library
 * can register.
 */
static inline struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (access & IBV_ACCESS_OPTIONAL_RANGE)
		return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
	return rdma_mummy_ibv_reg_mr(pd, addr, length, access);
}

static inline struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	if (access & IBV_ACCESS_OPTIONAL_RANGE)
		return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
	return rdma_mummy_ibv_reg_mr_iova(pd, addr, length, iova, access);
}

RDMA_MUMMY_MAKES(struct ibv_mr, ibv_alloc_null_mr, alloc_null_mr, pd->context, (struct ibv_pd *pd), (pd))
RDMA_MUMMY_DOES(ibv_advise_mr, advise_mr, pd->context,
		(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list, uint32_t count),
		(pd, advice, flags, list, count))

RDMA_MUMMY_MAKES(struct ibv_dm, ibv_alloc_dm, alloc_dm, context,
		 (struct ibv_context *context, struct ibv_alloc_dm_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_free_dm, free_dm, dm->context, (struct ibv_dm *dm), (dm))
RDMA_MUMMY_MAKES(struct ibv_mr, ibv_reg_dm_mr, reg_dm_mr, pd->context,
		 (struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access),
		 (pd, dm, offset, length, access))
RDMA_MUMMY_GIVES(int, ibv_memcpy_to_dm, dm->memcpy_to_dm,
		   (struct ibv_dm *dm, uint64_t offset, const void *host, size_t length), (dm, offset, host, length))
RDMA_MUMMY_GIVES(int, ibv_memcpy_from_dm, dm->memcpy_from_dm,
		   (void *host, struct ibv_dm *dm, uint64_t offset, size_t length), (host, dm, offset, length))

/* Memory windows. */
static inline struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	if (pd->context->ops.alloc_mw)
		return pd->context->ops.alloc_mw(pd, type);
	rdma_mummy_unsupported();
	return NULL;
}

RDMA_MUMMY_GIVES(int, ibv_dealloc_mw, mw->context->ops.dealloc_mw, (struct ibv_mw *mw), (mw))

static inline int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	const struct ibv_mw_bind_info *info = &bind->bind_info;

	/* A window of type 2 is bound by a work request; one without memory is an unbind. */
	if (mw->type != IBV_MW_TYPE_1 || (!info->mr && (info->addr || info->length)))
		return EINVAL;
	if (info->mr && info->mr->pd != mw->pd)
		return EPERM;
	return mw->context->ops.bind_mw(qp, mw, bind);
}

/* The next tag of a key, which is its low byte and wraps. */
static inline uint32_t ibv_inc_rkey(uint32_t rkey)
{
	return (rkey & 0xffffff00u) | ((rkey + 1) & 0xffu);
}

/* Domains. */
RDMA_MUMMY_MAKES(struct ibv_xrcd, ibv_open_xrcd, open_xrcd, context,
		 (struct ibv_context *context, struct ibv_xrcd_init_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_close_xrcd, close_xrcd, xrcd->context, (struct ibv_xrcd *xrcd), (xrcd))
RDMA_MUMMY_MAKES(struct ibv_td, ibv_alloc_td, alloc_td, context,
		 (struct ibv_context *context, struct ibv_td_init_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_dealloc_td, dealloc_td, td->context, (struct ibv_td *td), (td))
RDMA_MUMMY_MAKES(struct ibv_pd, ibv_alloc_parent_domain, alloc_parent_domain, context,
		 (struct ibv_context *context, struct ibv_parent_domain_init_attr *attr), (context, attr))

/* Queues. */
RDMA_MUMMY_MAKES(struct ibv_cq_ex, ibv_create_cq_ex, create_cq_ex, context,
		 (struct ibv_context *context, struct ibv_cq_init_attr_ex *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_modify_cq, modify_cq, cq->context, (struct ibv_cq *cq, struct ibv_modify_cq_attr *attr),
		(cq, attr))

static inline struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t type = IBV_SRQ_INIT_ATTR_TYPE, mask = attr->comp_mask;
	struct verbs_context *extended;

	/* Every library can create a basic queue with a domain and nothing else. */
	if ((mask & ~type) == IBV_SRQ_INIT_ATTR_PD && (!(mask & type) || attr->srq_type == IBV_SRQT_BASIC))
		return ibv_create_srq(attr->pd, (struct ibv_srq_init_attr *)attr);
	extended = verbs_get_ctx_op(context, create_srq_ex);
	if (extended)
		return extended->create_srq_ex(context, attr);
	rdma_mummy_unsupported();
	return NULL;
}

RDMA_MUMMY_DOES(ibv_get_srq_num, get_srq_num, srq->context, (struct ibv_srq *srq, uint32_t *number), (srq, number))

static inline int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op, struct ibv_ops_wr **bad_op)
{
	struct verbs_context *extended = verbs_get_ctx_op(srq->context, post_srq_ops);

	if (extended)
		return extended->post_srq_ops(srq, op, bad_op);
	*bad_op = op;
	return rdma_mummy_unsupported();
}

static inline struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct verbs_context *extended;

	if (attr->comp_mask == IBV_QP_INIT_ATTR_PD)
		return ibv_create_qp(attr->pd, (struct ibv_qp_init_attr *)attr);
	extended = verbs_get_ctx_op(context, create_qp_ex);
	if (extended)
		return extended->create_qp_ex(context, attr);
	rdma_mummy_unsupported();
	return NULL;
}

RDMA_MUMMY_MAKES(struct ibv_qp, ibv_open_qp, open_qp, context,
		 (struct ibv_context *context, struct ibv_qp_open_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_modify_qp_rate_limit, modify_qp_rate_limit, qp->context,
		(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr), (qp, attr))

static inline struct ibv_wq *ibv_create_wq(struct ibv_context *context, struct ibv_wq_init_attr *attr)
{
	struct verbs_context *extended = verbs_get_ctx_op(context, create_wq);
	struct ibv_wq *wq = NULL;

	if (extended)
		wq = extended->create_wq(context, attr);
	else
		rdma_mummy_unsupported();
	if (wq) {
		/* The part of the struct that the caller's side of the ABI fills in. */
		wq->wq_context = attr->wq_context;
		wq->events_completed = 0;
		pthread_mutex_init(&wq->mutex, NULL);
		pthread_cond_init(&wq->cond, NULL);
	}
	return wq;
}

RDMA_MUMMY_DOES(ibv_modify_wq, modify_wq, wq->context, (struct ibv_wq *wq, struct ibv_wq_attr *attr), (wq, attr))
RDMA_MUMMY_DOES(ibv_destroy_wq, destroy_wq, wq->context, (struct ibv_wq *wq), (wq))
RDMA_MUMMY_MAKES(struct ibv_rwq_ind_table, ibv_create_rwq_ind_table, create_rwq_ind_table, context,
		 (struct ibv_context *context, struct ibv_rwq_ind_table_init_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_destroy_rwq_ind_table, destroy_rwq_ind_table, table->context, (struct ibv_rwq_ind_table *table),
		(table))

/* Flows and counters. */
RDMA_MUMMY_MAKES(struct ibv_flow, ibv_create_flow, ibv_create_flow, qp->context,
		 (struct ibv_qp *qp, struct ibv_flow_attr *attr), (qp, attr))
RDMA_MUMMY_DOES(ibv_destroy_flow, ibv_destroy_flow, flow->context, (struct ibv_flow *flow), (flow))
RDMA_MUMMY_MAKES(struct ibv_flow_action, ibv_create_flow_action_esp, create_flow_action_esp, context,
		 (struct ibv_context *context, struct ibv_flow_action_esp_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_modify_flow_action_esp, modify_flow_action_esp, action->context,
		(struct ibv_flow_action *action, struct ibv_flow_action_esp_attr *attr), (action, attr))
RDMA_MUMMY_DOES(ibv_destroy_flow_action, destroy_flow_action, action->context, (struct ibv_flow_action *action),
		(action))
RDMA_MUMMY_MAKES(struct ibv_counters, ibv_create_counters, create_counters, context,
		 (struct ibv_context *context, struct ibv_counters_init_attr *attr), (context, attr))
RDMA_MUMMY_DOES(ibv_destroy_counters, destroy_counters, counters->context, (struct ibv_counters *counters),
		(counters))
RDMA_MUMMY_DOES(ibv_attach_counters_point_flow, attach_counters_point_flow, counters->context,
		(struct ibv_counters *counters, struct ibv_counter_attach_attr *attr, struct ibv_flow *flow),
		(counters, attr, flow))
RDMA_MUMMY_DOES(ibv_read_counters, read_counters, counters->context,
		(struct ibv_counters *counters, uint64_t *values, uint32_t count, uint32_t flags),
		(counters, values, count, flags))

#undef RDMA_MUMMY_MAKES
#undef RDMA_MUMMY_DOES
#undef RDMA_MUMMY_GIVES
#undef RDMA_MUMMY_CALLS
#undef RDMA_MUMMY_WR
#undef RDMA_MUMMY_WC

RDMA_MUMMY_END

#endif
