/*
 * The C program that `cargo xtask bench overhead` counts; src/bin/overhead.rs does the same.
 *
 *     overhead extended|classic LIST LISTS
 */
#include "common.h"
#include <errno.h>
#include <string.h>

#define DEPTH 64
#define BATCH 16 /* completions that are fetched at a time */
#define MESSAGE 8

/* A message and its destination. */
struct work {
    uint64_t wr_id; /* its position in the list, which identifies its completion */
    const unsigned char *message; /* MESSAGE bytes */
    uint64_t remote;
    uint32_t rkey;
};

/*
 * Queues, and the arrays of a list and of a batch. They are allocated, as in a program that has several
 * connections or learns the depth of its queues at run time. The compiler would know the addresses of
 * static arrays, in Rust too, so they would say nothing about the languages.
 */
struct connection {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    /* Of the extended flavour. */
    struct ibv_qp_ex *qp_ex;
    struct ibv_cq_ex *cq_ex;
    /* Of the classic one. */
    struct ibv_send_wr *requests;
    struct ibv_sge *entries;
    struct ibv_wc *batch;
    int batch_length;
};

static __attribute__((cold, noreturn)) void fail(enum ibv_wc_status status, uint64_t wr_id)
{
    fprintf(stderr, "completion of %llu: %s\n", (unsigned long long)wr_id, ibv_wc_status_str(status));
    exit(1);
}

/* Set up */

static void *array(size_t count, size_t each)
{
    return must(calloc(count, each), "calloc");
}

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

static inline __attribute__((always_inline)) void post_extended(struct connection *to, const struct work *works,
                                                                unsigned count)
{
    struct ibv_qp_ex *qp = to->qp_ex;
    ibv_wr_start(qp);
    for (unsigned i = 0; i < count; i++) {
        qp->wr_id = works[i].wr_id;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(qp, works[i].rkey, works[i].remote);
        ibv_wr_set_inline_data(qp, (void *)works[i].message, MESSAGE);
    }
    must_be(0, ibv_wr_complete(qp), "ibv_wr_complete");
}

static inline __attribute__((always_inline)) void poll_extended(struct connection *from, unsigned count)
{
    struct ibv_cq_ex *cq = from->cq_ex;
    uint64_t seen = 0;
    while (seen < count) {
        struct ibv_poll_cq_attr attr = { 0 };
        int result = ibv_start_poll(cq, &attr);
        if (result == ENOENT)
            continue;
        must_be(0, result, "ibv_start_poll");
        do {
            if (cq->status != IBV_WC_SUCCESS || cq->wr_id != seen)
                fail(cq->status, cq->wr_id);
            seen++;
            result = ibv_next_poll(cq);
        } while (result == 0);
        must_be(ENOENT, result, "ibv_next_poll");
        ibv_end_poll(cq);
    }
}

/* The part of the program that is counted. */

static __attribute__((noinline)) void extended_singly(struct connection *connection, const struct work *works, uint64_t lists)
{
    for (uint64_t list = 0; list < lists; list++) {
        post_extended(connection, works, 1);
        poll_extended(connection, 1);
    }
}

static __attribute__((noinline)) void extended_lists(struct connection *connection, const struct work *works, uint64_t lists)
{
    for (uint64_t list = 0; list < lists; list++) {
        post_extended(connection, works, 64);
        poll_extended(connection, 64);
    }
}

static void extended(const struct work *works, unsigned list, uint64_t lists)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
    struct ibv_cq_ex *cq = must(ibv_create_cq_ex(context, &attr), "ibv_create_cq_ex");
    struct ibv_qp *qp = make_extended(cq), *peer = make_extended(cq);
    bring_both_up(qp, peer);
    struct connection connection = { .qp_ex = must(ibv_qp_to_qp_ex(qp), "ibv_qp_to_qp_ex"), .cq_ex = cq };
    (list == 1 ? extended_singly : extended_lists)(&connection, works, lists);
    must_be(0, ibv_destroy_qp(qp) | ibv_destroy_qp(peer), "ibv_destroy_qp");
    must_be(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "ibv_destroy_cq");
}

/* Classic */

static inline __attribute__((always_inline)) void post_classic(struct connection *to, const struct work *works,
                                                               unsigned count)
{
    struct ibv_send_wr *requests = to->requests, *bad;
    struct ibv_sge *entries = to->entries;
    for (unsigned i = 0; i < count; i++) {
        entries[i].addr = (uintptr_t)works[i].message;
        entries[i].length = MESSAGE;
        requests[i].wr_id = works[i].wr_id;
        requests[i].next = i + 1 < count ? &requests[i + 1] : NULL;
        requests[i].sg_list = &entries[i];
        requests[i].num_sge = 1;
        requests[i].opcode = IBV_WR_RDMA_WRITE;
        requests[i].send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
        requests[i].wr.rdma.remote_addr = works[i].remote;
        requests[i].wr.rdma.rkey = works[i].rkey;
    }
    must_be(0, ibv_post_send(to->qp, requests, &bad), "ibv_post_send");
}

static inline __attribute__((always_inline)) void poll_classic(struct connection *from, unsigned count)
{
    uint64_t seen = 0;
    while (seen < count) {
        struct ibv_wc *batch = from->batch;
        int found = ibv_poll_cq(from->cq, from->batch_length, batch);
        if (found < 0)
            must_be(0, found, "ibv_poll_cq");
        for (int i = 0; i < found; i++) {
            if (batch[i].status != IBV_WC_SUCCESS || batch[i].wr_id != seen)
                fail(batch[i].status, batch[i].wr_id);
            seen++;
        }
    }
}

/* The part of the program that is counted. */

static __attribute__((noinline)) void classic_singly(struct connection *connection, const struct work *works, uint64_t lists)
{
    for (uint64_t list = 0; list < lists; list++) {
        post_classic(connection, works, 1);
        poll_classic(connection, 1);
    }
}

static __attribute__((noinline)) void classic_lists(struct connection *connection, const struct work *works, uint64_t lists)
{
    for (uint64_t list = 0; list < lists; list++) {
        post_classic(connection, works, 64);
        poll_classic(connection, 64);
    }
}

static void classic(const struct work *works, unsigned list, uint64_t lists)
{
    struct ibv_cq *cq = must(ibv_create_cq(context, DEPTH, NULL, NULL, 0), "ibv_create_cq");
    struct ibv_qp *qp = make_classic(cq), *peer = make_classic(cq);
    bring_both_up(qp, peer);
    struct connection connection = {
        .qp = qp,
        .cq = cq,
        .requests = array(DEPTH, sizeof *connection.requests),
        .entries = array(DEPTH, sizeof *connection.entries),
        .batch = array(BATCH, sizeof *connection.batch),
        .batch_length = BATCH,
    };
    (list == 1 ? classic_singly : classic_lists)(&connection, works, lists);
    free(connection.requests);
    free(connection.entries);
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
    unsigned char *messages = array(DEPTH, MESSAGE);
    struct work *works = array(DEPTH, sizeof *works);
    for (unsigned i = 0; i < DEPTH; i++)
        works[i] = (struct work){
            .wr_id = i,
            .message = messages + i * MESSAGE,
            .remote = (uintptr_t)region->addr + 4096,
            .rkey = region->rkey,
        };
    if (!strcmp(argv[1], "extended"))
        extended(works, list, lists);
    else if (!strcmp(argv[1], "classic"))
        classic(works, list, lists);
    else
        return 2;
    free(works);
    free(messages);
    must_be(0, ibv_dereg_mr(region), "ibv_dereg_mr");
    must_be(0, ibv_dealloc_pd(pd), "ibv_dealloc_pd");
    must_be(0, ibv_close_device(context), "ibv_close_device");
    return 0;
}
