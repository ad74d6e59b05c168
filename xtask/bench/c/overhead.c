/*
 * What `cargo xtask bench overhead` counts on C's side: see src/bin/overhead.rs, which does the same.
 *
 *     overhead extended|classic LIST LISTS
 */
#include "common.h"
#include <errno.h>
#include <string.h>

#define DEPTH 64
#define BATCH 16 /* completions that are fetched at a time */

struct target {
    uint32_t rkey;
    uint64_t remote;
};

static __attribute__((cold, noreturn)) void fail(enum ibv_wc_status status, uint64_t wr_id)
{
    fprintf(stderr, "completion of %llu: %s\n", (unsigned long long)wr_id, ibv_wc_status_str(status));
    exit(1);
}

/* Set up */

static struct ibv_mr *region;

static void register_memory(void)
{
    static char memory[8192] __attribute__((aligned(4096)));
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

/* What is counted, apart from what is not. */

static __attribute__((noinline)) void extended_singly(struct ibv_qp_ex *qp, struct ibv_cq_ex *cq, const struct target *target, uint64_t lists)
{
    for (uint64_t first = 0; first < lists; first++) {
        post_extended(qp, target, first, 1);
        poll_extended(cq, first, 1);
    }
}

static __attribute__((noinline)) void extended_lists(struct ibv_qp_ex *qp, struct ibv_cq_ex *cq, const struct target *target, uint64_t lists)
{
    for (uint64_t first = 0; first < lists * 64; first += 64) {
        post_extended(qp, target, first, 64);
        poll_extended(cq, first, 64);
    }
}

static void extended(struct target target, unsigned list, uint64_t lists)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
    struct ibv_cq_ex *cq = must(ibv_create_cq_ex(context, &attr), "ibv_create_cq_ex");
    struct ibv_qp *qp = make_extended(cq), *peer = make_extended(cq);
    struct ibv_qp_ex *ex = must(ibv_qp_to_qp_ex(qp), "ibv_qp_to_qp_ex");
    bring_both_up(qp, peer);
    (list == 1 ? extended_singly : extended_lists)(ex, cq, &target, lists);
    must_be(0, ibv_destroy_qp(qp) | ibv_destroy_qp(peer), "ibv_destroy_qp");
    must_be(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
}

/* Classic */

/*
 * What a list is built in and a batch is fetched into: allocated and reached through pointers, as in any program that has
 * more than one connection, or learns the depth of its queues when it runs. With static arrays the compiler would know
 * their addresses, which is no merit of C: a static array in Rust would do the same.
 */
struct connection {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_send_wr *requests;
    struct ibv_sge *entries;
    uint64_t *values;
    struct ibv_wc *batch;
    int batch_length;
};

static void *array(size_t count, size_t each)
{
    return must(calloc(count, each), "calloc");
}

static inline __attribute__((always_inline)) void post_classic(struct connection *to, const struct target *target,
                                                               uint64_t first, unsigned count)
{
    struct ibv_send_wr *requests = to->requests, *bad;
    struct ibv_sge *entries = to->entries;
    uint64_t *values = to->values;
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
    must_be(0, ibv_post_send(to->qp, requests, &bad), "ibv_post_send");
}

static inline __attribute__((always_inline)) void poll_classic(struct connection *from, uint64_t first, unsigned count)
{
    unsigned seen = 0;
    while (seen < count) {
        struct ibv_wc *batch = from->batch;
        int found = ibv_poll_cq(from->cq, from->batch_length, batch);
        if (found < 0)
            must_be(0, found, "ibv_poll_cq");
        for (int i = 0; i < found; i++) {
            if (batch[i].status != IBV_WC_SUCCESS || batch[i].wr_id != first + seen)
                fail(batch[i].status, batch[i].wr_id);
            seen++;
        }
    }
}

/* What is counted, apart from what is not. */

static __attribute__((noinline)) void classic_singly(struct connection *connection, const struct target *target, uint64_t lists)
{
    for (uint64_t first = 0; first < lists; first++) {
        post_classic(connection, target, first, 1);
        poll_classic(connection, first, 1);
    }
}

static __attribute__((noinline)) void classic_lists(struct connection *connection, const struct target *target, uint64_t lists)
{
    for (uint64_t first = 0; first < lists * 64; first += 64) {
        post_classic(connection, target, first, 64);
        poll_classic(connection, first, 64);
    }
}

static void classic(struct target target, unsigned list, uint64_t lists)
{
    struct ibv_cq *cq = must(ibv_create_cq(context, DEPTH, NULL, NULL, 0), "ibv_create_cq");
    struct ibv_qp *qp = make_classic(cq), *peer = make_classic(cq);
    bring_both_up(qp, peer);
    struct connection connection = {
        .qp = qp,
        .cq = cq,
        .requests = array(DEPTH, sizeof *connection.requests),
        .entries = array(DEPTH, sizeof *connection.entries),
        .values = array(DEPTH, sizeof *connection.values),
        .batch = array(BATCH, sizeof *connection.batch),
        .batch_length = BATCH,
    };
    (list == 1 ? classic_singly : classic_lists)(&connection, &target, lists);
    free(connection.requests);
    free(connection.entries);
    free(connection.values);
    free(connection.batch);
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
    register_memory();
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
