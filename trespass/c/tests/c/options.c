/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

/* A struct of a later version. */
struct later {
	trespass_options known;
	int64_t added[3];
};

/* A struct of an earlier version ends in the middle of this one. */
static void earlier_sizes(void)
{
	trespass_options options = TRESPASS_OPTIONS_INIT;
	trespass_listener *listener;

	/* Beyond the size are values that would be refused. */
	options.size = offsetof(trespass_options, rx_slots);
	options.rx_slots = 1;
	options.hop_limit = 9999;
	listener = trespass_listen("127.0.0.1:0", &options);
	CHECK(listener && trespass_listener_close(listener) == 0);
	options.size = sizeof(options);
	REFUSED_NULL(trespass_listen("127.0.0.1:0", &options), EINVAL);
	size_t nothing_else = sizeof(size_t);
	listener = trespass_listen("127.0.0.1:0", (const trespass_options *)&nothing_else);
	CHECK(listener && trespass_listener_close(listener) == 0);
}

static void later_sizes(void)
{
	struct later later = { .known = TRESPASS_OPTIONS_INIT };
	trespass_listener *listener;

	later.known.size = sizeof(later);
	listener = trespass_listen("127.0.0.1:0", &later.known);
	CHECK(listener && trespass_listener_close(listener) == 0);
	later.added[2] = 1;
	REFUSED_NULL(trespass_listen("127.0.0.1:0", &later.known), E2BIG);
	CHECK(strstr(trespass_error(), "install a library as new as the program's header"));
	size_t wrong[] = { 0, sizeof(size_t) - 1, (size_t)1 << 40, (size_t)-1 };
	for (size_t n = 0; n < sizeof(wrong) / sizeof(wrong[0]); n++) {
		later.known.size = wrong[n];
		REFUSED_NULL(trespass_listen("127.0.0.1:0", &later.known), EINVAL);
		CHECK(strstr(trespass_error(), "TRESPASS_OPTIONS_INIT"));
	}
}

#define NUMBER(name) { #name, offsetof(trespass_options, name) }

static const struct {
	const char *name;
	size_t at;
} numbers[] = {
	NUMBER(policy), NUMBER(bootstrap), NUMBER(max_msg), NUMBER(rcvbuf), NUMBER(sndbuf),
	NUMBER(backlog), NUMBER(bind_patience_ms), NUMBER(reuse_port),
	NUMBER(handshake_deadline_ms), NUMBER(probe_timeout_ms), NUMBER(linger_ms),
	NUMBER(exit_timeout_ms), NUMBER(keepalive_ms), NUMBER(control_keepalive_ms),
	NUMBER(spin_us), NUMBER(worker_spin_us), NUMBER(trace_interval_ms),
	NUMBER(coalescing), NUMBER(rendezvous), NUMBER(immediate), NUMBER(eager_max),
	NUMBER(inline_max), NUMBER(rx_slots), NUMBER(slot_size), NUMBER(reserve),
	NUMBER(srq), NUMBER(srq_size), NUMBER(max_rts), NUMBER(rd_atomic),
	NUMBER(read_piece), NUMBER(staged_block), NUMBER(registrations),
	NUMBER(pool_initial), NUMBER(pool_prewarm), NUMBER(pool_max),
	NUMBER(pool_high_water), NUMBER(huge_pages), NUMBER(gid_index), NUMBER(path_mtu),
	NUMBER(traffic_class), NUMBER(service_level), NUMBER(hop_limit),
	NUMBER(ack_timeout), NUMBER(retry_count), NUMBER(rnr_retry), NUMBER(min_rnr_timer),
	NUMBER(rails_after), NUMBER(rail_timeout_ms),
};

/* Each number of the struct reaches the parameter of its name: an impossible value is refused. */
static void every_number(void)
{
	size_t count = sizeof(numbers) / sizeof(numbers[0]);

	CHECK(offsetof(trespass_options, policy) + count * sizeof(int64_t) == sizeof(trespass_options));
	for (size_t n = 0; n < count; n++) {
		trespass_options options = TRESPASS_OPTIONS_INIT;
		size_t length = strlen(numbers[n].name);
		int64_t impossible = INT64_MIN;
		memcpy((char *)&options + numbers[n].at, &impossible, sizeof(impossible));
		REFUSED_NULL(trespass_worker_new(&options), EINVAL);
		CHECK(!strncmp(trespass_error(), numbers[n].name, length));
		CHECK(!strncmp(trespass_error() + length, " = -9223372036854775808 is refused", 34));
	}
}

void options(void)
{
	trespass_options options = TRESPASS_OPTIONS_INIT;
	struct pair pair;
	size_t length = 0;

	earlier_sizes();
	later_sizes();
	every_number();
	options.rx_slots = 4;
	REFUSED_NULL(trespass_connect("127.0.0.1:1", TRESPASS_STREAM, &options), EINVAL);
	CHECK(strstr(trespass_error(), "rx_slots = 4 is refused: it must be"));
	options.rx_slots = 0;
	options.device = "no/device";
	REFUSED_NULL(trespass_listen("127.0.0.1:0", &options), EINVAL);
	options.device = "soft0,soft1:1,soft0:1";
	REFUSED_NULL(trespass_listen("127.0.0.1:0", &options), EINVAL);
	CHECK(strstr(trespass_error(), "leave out soft0:1"));
	options.device = NULL;
	options.user_data_length = 4;
	REFUSED_NULL(trespass_listen("127.0.0.1:0", &options), EFAULT);

	options.user_data = "data";
	options.linger_ms = TRESPASS_ZERO;
	options.keepalive_ms = TRESPASS_ZERO;
	options.coalescing = TRESPASS_NO;
	options.rendezvous = TRESPASS_YES;
	options.max_msg = 1000;
	options.handshake_deadline_ms = LIMIT_MS;
	pair = connect_pair(TRESPASS_SEQPACKET, &options);
	const void *data = trespass_peer_user_data(pair.server, &length);
	CHECK(length == 4 && !memcmp(data, "data", 4));
	static char message[1001];
	CHECK(trespass_send(pair.client, message, 1000) == 0);
	REFUSED(trespass_send(pair.client, message, 1001), EINVAL);
	close_pair(pair);
}
