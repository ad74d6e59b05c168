/*
 * The cost of many queue pairs, for `cargo xtask bench soft`.
 *
 *     scale pairs COUNT      opens this number of connected pairs, and closes everything
 *     scale idle SECONDS     waits for an event that does not come, with 100 queue pairs open
 *
 * Prints `NAME VALUE` lines.
 */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

/* Descriptors, mappings and resident KiB of this process, without those of this function. */
struct use {
    long descriptors, mappings, kib;
};

static struct use look(void)
{
    struct use use = { .descriptors = -3 }; /* `.`, `..` and the open folder. */
    DIR *folder = must(opendir("/proc/self/fd"), "/proc/self/fd");
    while (readdir(folder))
        use.descriptors++;
    closedir(folder);
    char line[512];
    FILE *file = must(fopen("/proc/self/maps", "r"), "/proc/self/maps");
    while (fgets(line, sizeof line, file))
        use.mappings += strchr(line, '\n') != NULL;
    fclose(file);
    file = must(fopen("/proc/self/smaps_rollup", "r"), "/proc/self/smaps_rollup");
    while (fgets(line, sizeof line, file))
        sscanf(line, "Rss: %ld", &use.kib);
    fclose(file);
    return use;
}

static struct ibv_qp *make(struct ibv_cq *cq)
{
    struct ibv_qp_cap cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
    struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC };
    return must(ibv_create_qp(pd, &attr), "ibv_create_qp");
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the 101 values around an index. */
static double median_around(const double *took, unsigned place)
{
    double some[101];
    memcpy(some, took + place - 51, sizeof some);
    qsort(some, 101, sizeof some[0], compare);
    return some[50];
}

static void pairs(unsigned count)
{
    double *took = must(calloc(count + 100, sizeof *took), "memory");
    struct ibv_qp **qps = must(calloc(2 * (count + 100), sizeof *qps), "memory");
    memset(took, 1, (count + 100) * sizeof *took);
    memset(qps, 1, 2 * (count + 100) * sizeof *qps);
    struct use before = look();
    for (int round = 0; round < 2; round++) {
        open_place();
        struct ibv_cq *cq = must(ibv_create_cq(context, 16, NULL, NULL, 0), "ibv_create_cq");
        struct use few = { 0 }, many;
        for (unsigned i = 0; i < count + 100; i++) {
            if (i == 100)
                few = look();
            double start = now();
            qps[2 * i] = make(cq);
            qps[2 * i + 1] = make(cq);
            bring_both_up(qps[2 * i], qps[2 * i + 1]);
            took[i] = now() - start;
        }
        many = look();
        for (unsigned i = 0; i < 2 * (count + 100); i++)
            must_be(0, ibv_destroy_qp(qps[i]), "ibv_destroy_qp");
        must_be(0, ibv_destroy_cq(cq), "ibv_destroy_cq");
        must_be(0, ibv_dealloc_pd(pd), "ibv_dealloc_pd");
        must_be(0, ibv_close_device(context), "ibv_close_device");
        struct use after = look();
        if (round == 0) {
            /* While all memory is new to the process. In later rounds the first pairs use memory that the C
               library kept, and only the last ones pay for new pages. */
            printf("open-100 %.0f\nopen-last %.0f\n", median_around(took, 100), median_around(took, count));
            /* The memory that the C library and the device keep for later. */
            before = after;
            continue;
        }
        printf("kib-per-pair %.3f\n", (double)(many.kib - few.kib) / count);
        printf("descriptors-of-pairs %ld\n", many.descriptors - few.descriptors);
        printf("left-descriptors %ld\nleft-mappings %ld\nleft-kib %ld\n", after.descriptors - before.descriptors,
               after.mappings - before.mappings, after.kib - before.kib);
    }
}

static double cpu_time(void)
{
    struct rusage use;
    must_be(0, getrusage(RUSAGE_SELF, &use), "getrusage");
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e3 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e3;
}

static void idle(int seconds)
{
    open_place();
    struct ibv_comp_channel *channel = must(ibv_create_comp_channel(context), "ibv_create_comp_channel");
    struct ibv_cq *cq = must(ibv_create_cq(context, 16, NULL, channel, 0), "ibv_create_cq");
    for (int i = 0; i < 50; i++) {
        struct ibv_qp *one = make(cq), *other = make(cq);
        bring_both_up(one, other);
    }
    must_be(0, ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
    struct pollfd event = { .fd = channel->fd, .events = POLLIN };
    poll(&event, 1, 200);
    double before = cpu_time();
    must_be(0, poll(&event, 1, seconds * 1000), "an event");
    printf("idle-ms %.3f\n", cpu_time() - before);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "pairs"))
        pairs((unsigned)strtoul(argv[2], NULL, 10));
    else if (argc == 3 && !strcmp(argv[1], "idle"))
        idle(atoi(argv[2]));
    else
        return 2;
    return 0;
}
