/* Shared by the programs of this folder: a device, and connections of the process to itself. */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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

static struct ibv_context *context;
static struct ibv_pd *pd;
static void open_place(void)
{
    struct ibv_device **list = must(ibv_get_device_list(NULL), "ibv_get_device_list");
    context = must(ibv_open_device(must(list[0], "a device")), "ibv_open_device");
    ibv_free_device_list(list);
    pd = must(ibv_alloc_pd(context), "ibv_alloc_pd");
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
