/*
 * What `cargo xtask bench overhead` counts on C's side: see src/bin/overhead.rs, which does the same.
 *
 *     overhead extended|classic LIST LISTS
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 64
#define BATCH 16 /* completions that are fetched at a time */

struct target {
    uint32_t rkey;
    uint64_t remote;
};

static void *must(void *made, const char *what)
{
    if (!made) {
        perror(what);
        exit(1);
    }
    return made;
}

static void must_be(int expected, int is, const char *what)
{
    if (is != expected) {
        fprintf(stderr, "%s: %d instead of %d\n", what, is, expected);
        exit(1);
    }
}

static __attribute__((cold, noreturn)) void fail(enum ibv_wc_status status, uint64_t wr_id)
{
    fprintf(stderr, "completion of %llu: %s\n", (unsigned long long)wr_id, ibv_wc_status_str(status));
    exit(1);
}

/* Set up */

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *region;

static void open_place(void)
{
    static char memory[8192] __attribute__((aligned(4096)));
    struct ibv_device **list = must(ibv_get_device_list(NULL), "ibv_get_device_list");
    context = must(ibv_open_device(must(list[0], "a device")), "ibv_open_device");
    ibv_free_device_list(list);
    pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    region = must(ibv_reg_mr(pd, memory, sizeof memory, access), "ibv_reg_mr");
}

static struct ibv_qp_cap cap(void)
{
    return (struct ibv_qp_cap){
        .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64
    };
}

static struct ibv_qp *make_extended(struct ibv_cq_ex *cq)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = ibv_cq_ex_to_cq(cq),
        .recv_cq = ibv_cq_ex_to_cq(cq),
        .cap = cap(),
        .qp_type = IBV_QPT_RC,
        .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
    };
    return must(ibv_create_qp_ex(context, &attr), "ibv_create_qp_ex");
}

static struct ibv_qp *make_classic(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = cap(), .qp_type = IBV_QPT_RC };
    return must(ibv_create_qp(pd, &attr), "ibv_create_qp");
}

static void bring_up(struct ibv_qp *qp, struct ibv_qp *peer)
{
    union ibv_gid gid;
    must_be(0, ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    must_be(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 255 } },
    };
    must_be(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
    };
    must_be(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void bring_both_up(struct ibv_qp *one, struct ibv_qp *other)
{
    bring_up(one, other);
    bring_up(other, one);
}

/* Extended */

static inline __attribute__((always_inline)) void post_extended(struct ibv_qp_ex *qp, const struct target *target,
                                                                uint64_t first, unsigned count)
{
    ibv_wr_start(qp);
    for (uint64_t number = first; number < first + count; number++) {
        qp->wr_id = number;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(qp, target->rkey, target->remote);
        ibv_wr_set_inline_data(qp, &number, sizeof number);
    }
    must_be(0, ibv_wr_complete(qp), "ibv_wr_complete");
}

static inline __attribute__((always_inline)) void poll_extended(struct ibv_cq_ex *cq, uint64_t first, unsigned count)
{
    unsigned seen = 0;
    while (seen < count) {
        struct ibv_poll_cq_attr attr = { 0 };
        int result = ibv_start_poll(cq, &attr);
        if (result == ENOENT)
            continue;
        must_be(0, result, "ibv_start_poll");
        do {
            if (cq->status != IBV_WC_SUCCESS || cq->wr_id != first + seen)
                fail(cq->status, cq->wr_id);
            seen++;
            result = ibv_next_poll(cq);
        } while (result == 0);
        must_be(ENOENT, result, "ibv_next_poll");
        ibv_end_poll(cq);
    }
}

static void extended(struct target target, unsigned list, uint64_t lists)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
    struct ibv_cq_ex *cq = must(ibv_create_cq_ex(context, &attr), "ibv_create_cq_ex");
    struct ibv_qp *qp = make_extended(cq), *peer = make_extended(cq);
    struct ibv_qp_ex *ex = must(ibv_qp_to_qp_ex(qp), "ibv_qp_to_qp_ex");
    bring_both_up(qp, peer);
    if (list == 1) {
        for (uint64_t first = 0; first < lists; first++) {
            post_extended(ex, &target, first, 1);
            poll_extended(cq, first, 1);
        }
    } else {
        for (uint64_t first = 0; first < lists * 64; first += 64) {
            post_extended(ex, &target, first, 64);
            poll_extended(cq, first, 64);
        }
    }
    must_be(0, ibv_destroy_qp(qp) | ibv_destroy_qp(peer), "ibv_destroy_qp");
    must_be(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
}

/* Classic */

static struct ibv_send_wr requests[DEPTH];
static struct ibv_sge entries[DEPTH];
static uint64_t values[DEPTH];

static inline __attribute__((always_inline)) void post_classic(struct ibv_qp *qp, const struct target *target,
                                                               uint64_t first, unsigned count)
{
    struct ibv_send_wr *bad;
    for (unsigned i = 0; i < count; i++) {
        values[i] = first + i;
        entries[i].addr = (uintptr_t)&values[i];
        entries[i].length = sizeof values[i];
        requests[i].wr_id = first + i;
        requests[i].next = i + 1 < count ? &requests[i + 1] : NULL;
        requests[i].sg_list = &entries[i];
        requests[i].num_sge = 1;
        requests[i].opcode = IBV_WR_RDMA_WRITE;
        requests[i].send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
        requests[i].wr.rdma.remote_addr = target->remote;
        requests[i].wr.rdma.rkey = target->rkey;
    }
    must_be(0, ibv_post_send(qp, requests, &bad), "ibv_post_send");
}

static inline __attribute__((always_inline)) void poll_classic(struct ibv_cq *cq, uint64_t first, unsigned count)
{
    static struct ibv_wc batch[BATCH];
    unsigned seen = 0;
    while (seen < count) {
        int found = ibv_poll_cq(cq, BATCH, batch);
        if (found < 0)
            must_be(0, found, "ibv_poll_cq");
        for (int i = 0; i < found; i++) {
            if (batch[i].status != IBV_WC_SUCCESS || batch[i].wr_id != first + seen)
                fail(batch[i].status, batch[i].wr_id);
            seen++;
        }
    }
}

static void classic(struct target target, unsigned list, uint64_t lists)
{
    struct ibv_cq *cq = must(ibv_create_cq(context, DEPTH, NULL, NULL, 0), "ibv_create_cq");
    struct ibv_qp *qp = make_classic(cq), *peer = make_classic(cq);
    bring_both_up(qp, peer);
    if (list == 1) {
        for (uint64_t first = 0; first < lists; first++) {
            post_classic(qp, &target, first, 1);
            poll_classic(cq, first, 1);
        }
    } else {
        for (uint64_t first = 0; first < lists * 64; first += 64) {
            post_classic(qp, &target, first, 64);
            poll_classic(cq, first, 64);
        }
    }
    must_be(0, ibv_destroy_qp(qp) | ibv_destroy_qp(peer), "ibv_destroy_qp");
    must_be(0, ibv_destroy_cq(cq), "ibv_destroy_cq");
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fputs("usage: overhead extended|classic 1|64 LISTS\n", stderr);
        return 2;
    }
    unsigned list = (unsigned)strtoul(argv[2], NULL, 10);
    uint64_t lists = strtoull(argv[3], NULL, 10);
    open_place();
    struct target target = { .rkey = region->rkey, .remote = (uintptr_t)region->addr + 4096 };
    if (!strcmp(argv[1], "extended"))
        extended(target, list, lists);
    else if (!strcmp(argv[1], "classic"))
        classic(target, list, lists);
    else
        return 2;
    must_be(0, ibv_dereg_mr(region), "ibv_dereg_mr");
    must_be(0, ibv_dealloc_pd(pd), "ibv_dealloc_pd");
    must_be(0, ibv_close_device(context), "ibv_close_device");
    return 0;
}
