/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * The inline functions against tables of this program, in the layouts of old and of new libraries.
 * Valid C and C++.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_verbs.h>

#include "check.h"

/* Names of functions that the program also uses for other things. */
struct names {
	int ibv_open_device, ibv_reg_mr, ibv_query_port, rdma_accept;
};

static struct verbs_context table;
static struct ibv_context *const context = &table.context;
static struct ibv_pd pd;
static int calls;

static int advise(struct ibv_pd *of, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
		  uint32_t count)
{
	(void)advice, (void)flags, (void)list, (void)count;
	calls += of == &pd;
	return 0;
}

static int query_port(struct ibv_context *of, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	(void)of;
	memset(attr, port, size);
	return size == sizeof(*attr) ? 0 : EINVAL;
}

static int device_ex_error;

static int query_device_ex(struct ibv_context *of, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	(void)of, (void)input, (void)attr, (void)size;
	calls++;
	return device_ex_error;
}

static struct ibv_srq made_srq;

static struct ibv_srq *create_srq_ex(struct ibv_context *of, struct ibv_srq_init_attr_ex *attr)
{
	(void)of, (void)attr;
	return &made_srq;
}

static struct ibv_wq made_wq;

static struct ibv_wq *create_wq(struct ibv_context *of, struct ibv_wq_init_attr *attr)
{
	(void)of, (void)attr;
	return &made_wq;
}

static int polls;

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	(void)cq;
	wc->wr_id = 7;
	return ++polls == 2 ? count : 0;
}

static int notify(struct ibv_cq *cq, int solicited_only)
{
	(void)cq;
	calls++;
	return solicited_only;
}

static struct ibv_send_wr posted;
static struct ibv_sge posted_sge;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	posted = *wr;
	posted_sge = *wr->sg_list;
	*bad = wr;
	return wr->send_flags ? ENOMEM : 0;
}

/* As if the library had been built when `field` was the newest. */
#define SIZE_UP_TO(field) (sizeof(struct verbs_context) - offsetof(struct verbs_context, field))

static void sizes(void)
{
	struct ibv_port_attr port;

	table.advise_mr = advise;
	CHECK(ibv_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EOPNOTSUPP && !calls);
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	table.sz = SIZE_UP_TO(alloc_null_mr);
	CHECK(ibv_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EOPNOTSUPP && !calls);
	table.sz = SIZE_UP_TO(advise_mr);
	CHECK(ibv_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == 0 && calls == 1);
	errno = 0;
	CHECK(!ibv_alloc_null_mr(&pd) && errno == EOPNOTSUPP && !rdma_mummy_error());

	table.sz = sizeof(table);
	table.query_port = query_port;
	CHECK(ibv_query_port(context, 3, &port) == 0 && port.active_speed_ex == 0x03030303);
}

static void fallbacks(void)
{
	struct ibv_query_device_ex_input input;
	struct ibv_device_attr_ex device;
	struct ibv_srq_init_attr_ex srq;
	struct ibv_wq_init_attr wq;

	memset(&input, 0, sizeof(input));
	memset(&srq, 0, sizeof(srq));
	memset(&wq, 0, sizeof(wq));

	table.query_device_ex = query_device_ex;
	input.comp_mask = 1;
	CHECK(ibv_query_device_ex(context, &input, &device) == EINVAL && calls == 1);
	CHECK(ibv_query_device_ex(context, NULL, &device) == 0 && calls == 2);
	device_ex_error = EIO;
	CHECK(ibv_query_device_ex(context, NULL, &device) == EIO);

	/* An extended queue is never created as a basic one. */
	table.create_srq_ex = create_srq_ex;
	srq.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
	srq.srq_type = IBV_SRQT_XRC;
	CHECK(ibv_create_srq_ex(context, &srq) == &made_srq);
	table.create_srq_ex = NULL;
	CHECK(!ibv_create_srq_ex(context, &srq) && errno == EOPNOTSUPP);

	table.create_wq = create_wq;
	made_wq.events_completed = 5;
	wq.wq_context = &wq;
	CHECK(ibv_create_wq(context, &wq) == &made_wq && made_wq.wq_context == &wq && !made_wq.events_completed);
}

static void values(void)
{
	struct ibv_mr mr;
	struct ibv_mw mw;
	struct ibv_mw_bind bind;

	memset(&mr, 0, sizeof(mr));
	memset(&mw, 0, sizeof(mw));
	memset(&bind, 0, sizeof(bind));
	CHECK(ibv_inc_rkey(0x123456ff) == 0x12345600 && ibv_inc_rkey(0x12345600) == 0x12345601);
	CHECK(ibv_flow_label_to_udp_sport(0xfffff) == (0xc000 | (0x3fff ^ 0x3f)));
	CHECK(ibv_is_qpt_supported(1u << IBV_QPT_UD, IBV_QPT_UD) == 1 && !ibv_is_qpt_supported(1u << IBV_QPT_UD, IBV_QPT_RC));

	mw.type = IBV_MW_TYPE_2;
	CHECK(ibv_bind_mw(NULL, &mw, &bind) == EINVAL);
	mw.type = IBV_MW_TYPE_1;
	bind.bind_info.length = 1;
	CHECK(ibv_bind_mw(NULL, &mw, &bind) == EINVAL);
	bind.bind_info.mr = &mr;
	mw.pd = &pd;
	CHECK(ibv_bind_mw(NULL, &mw, &bind) == EPERM);
}

static void connections(void)
{
	static char buffer[8];
	struct rdma_cm_id id;
	struct ibv_cq cq;
	struct ibv_qp qp;
	struct ibv_wc wc;
	struct ibv_mr mr;

	memset(&id, 0, sizeof(id));
	memset(&cq, 0, sizeof(cq));
	memset(&qp, 0, sizeof(qp));
	memset(&mr, 0, sizeof(mr));
	cq.context = qp.context = context;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = notify;
	context->ops.post_send = post_send;
	id.send_cq = &cq;
	id.qp = &qp;
	calls = 0;
	CHECK(rdma_get_send_comp(&id, &wc) == 1 && wc.wr_id == 7 && polls == 2 && calls == 1);

	mr.lkey = 11;
	CHECK(rdma_post_write(&id, buffer, buffer, sizeof(buffer), &mr, 0, 99, 98) == 0);
	CHECK(posted.opcode == IBV_WR_RDMA_WRITE && posted.wr_id == (uintptr_t)buffer && !posted.next);
	CHECK(posted.wr.rdma.remote_addr == 99 && posted.wr.rdma.rkey == 98);
	CHECK(posted_sge.lkey == 11 && posted_sge.length == sizeof(buffer) && posted_sge.addr == (uintptr_t)buffer);
	CHECK(rdma_post_send(&id, NULL, buffer, 1, NULL, IBV_SEND_SIGNALED) == -1 && errno == ENOMEM);
}

int main(void)
{
	struct names names = { 1, 2, 3, 4 };

	pd.context = context;
	CHECK(names.ibv_open_device + names.ibv_reg_mr + names.ibv_query_port + names.rdma_accept == 10);
	sizes();
	fallbacks();
	values();
	connections();
	return 0;
}
