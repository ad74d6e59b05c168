/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

static char block[1 << 18];

/* Writes until a call would block. */
static void fill_up(trespass_connection *connection)
{
	ssize_t written;

	while ((written = trespass_write(connection, block, sizeof(block))) > 0)
		;
	CHECK(written == -1 && errno == EAGAIN);
}

/* Reads until a call would block. */
static void drain_away(trespass_connection *connection)
{
	static char in[1 << 16];
	ssize_t got;

	while ((got = trespass_read(connection, in, sizeof(in))) > 0)
		;
	CHECK(got == -1 && errno == EAGAIN);
}

/* Waits until either has something to do. */
static void wait_for_either(struct pair pair)
{
	struct pollfd waited[] = {
		{ .fd = trespass_fd(pair.client), .events = POLLIN },
		{ .fd = trespass_fd(pair.server), .events = POLLIN },
	};

	CHECK(poll(waited, 2, LIMIT_MS) > 0);
}

void nonblocking_poll(void)
{
	struct place place = listen_here(NULL);
	struct pair pair;
	char in[8];

	CHECK(trespass_listener_set_nonblocking(place.listener, 1) == 0);
	REFUSED_NULL(trespass_accept(place.listener, TRESPASS_STREAM), EAGAIN);
	pair.client = trespass_connect(place.address, TRESPASS_STREAM, NULL);
	CHECK(pair.client);
	while (!(pair.server = trespass_accept(place.listener, TRESPASS_STREAM))) {
		CHECK(errno == EAGAIN);
		wait_for(trespass_listener_fd(place.listener), POLLIN);
	}
	CHECK(trespass_listener_close(place.listener) == 0);
	CHECK(trespass_set_nonblocking(pair.client, 1) == 0);
	CHECK(trespass_set_nonblocking(pair.server, 1) == 0);
	REFUSED(trespass_read(pair.client, in, sizeof(in)), EAGAIN);
	write_all(pair.server, "hello", 5);
	/* It may be readable without cause, but not again and again. */
	int wakes = 0;
	do {
		wait_for(trespass_fd(pair.client), POLLIN);
		CHECK(++wakes < 100);
	} while (!(trespass_readiness(pair.client) & TRESPASS_READABLE));
	read_all(pair.client, in, 5);

	/* Room after a refused write makes the descriptor readable. */
	CHECK(trespass_set_interest(pair.client, TRESPASS_READABLE | TRESPASS_WRITABLE) == 0);
	REFUSED(trespass_set_interest(pair.client, 8), EINVAL);
	fill_up(pair.client);
	long long until = now_ms() + LIMIT_MS;
	ssize_t more;
	do {
		CHECK(now_ms() < until);
		drain_away(pair.server);
		wait_for_either(pair);
		more = trespass_write(pair.client, "!", 1);
		CHECK(more == 1 || errno == EAGAIN);
	} while (more < 0);
	close_pair(pair);
}

/* One edge-triggered set serves both sides, which echo messages as large as the buffers. */
void nonblocking_epoll(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	trespass_connection *both[] = { pair.client, pair.server };
	int set = epoll_create1(EPOLL_CLOEXEC);
	static unsigned char in[1 << 16], out[1 << 16];
	size_t sent = 0, got = 0, target = 4u << 20;
	long long until = now_ms() + LIMIT_MS;

	CHECK(set >= 0);
	for (int n = 0; n < 2; n++) {
		struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u32 = (unsigned)n };
		CHECK(trespass_set_nonblocking(both[n], 1) == 0);
		CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, trespass_fd(both[n]), &event));
	}
	/* The client has a second descriptor for EPOLLOUT. */
	struct epoll_event room = { .events = EPOLLOUT | EPOLLET, .data.u32 = 2 };
	CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, trespass_writable_fd(pair.client), &room));
	while (got < target) {
		struct epoll_event events[8];
		int count = epoll_wait(set, events, 8, LIMIT_MS);
		CHECK(count > 0 && now_ms() < until);
		for (int n = 0; n < count; n++) {
			ssize_t moved = 1;
			while (events[n].data.u32 == 2 && sent < target && moved > 0) {
				size_t length = target - sent < sizeof(out) ? target - sent : sizeof(out);
				fill(out, sent, length);
				moved = trespass_write(pair.client, out, length);
				CHECK(moved > 0 || errno == EAGAIN);
				sent += moved > 0 ? (size_t)moved : 0;
			}
			while (events[n].data.u32 == 1 && got < target && moved > 0) {
				moved = trespass_read(pair.server, in, sizeof(in));
				CHECK(moved > 0 || errno == EAGAIN);
				check_bytes(in, got, moved > 0 ? (size_t)moved : 0);
				got += moved > 0 ? (size_t)moved : 0;
			}
			/* Its own descriptor: a call sends what the peer has room for. */
			if (events[n].data.u32 == 0)
				CHECK(trespass_readiness(pair.client) >= 0);
		}
	}
	close(set);
	close_pair(pair);
}

void nonblocking_connect(void)
{
	struct place place;
	struct pair pair;
	int kinds[] = { TRESPASS_STREAM, TRESPASS_SEQPACKET };

	REFUSED_NULL(trespass_connect_start("localhost:1", TRESPASS_STREAM, NULL), EINVAL);
	for (int n = 0; n < 2; n++) {
		place = listen_here(NULL);
		trespass_connecting *connecting = trespass_connect_start(place.address, kinds[n], NULL);
		CHECK(connecting);
		while (!(pair.client = trespass_connect_finish(connecting))) {
			CHECK(errno == EAGAIN);
			wait_for(trespass_connect_fd(connecting), POLLIN);
		}
		REFUSED_NULL(trespass_connect_finish(connecting), EINVAL);
		CHECK(trespass_connect_close(connecting) == 0);
		pair.server = trespass_accept(place.listener, kinds[n]);
		CHECK(pair.server);
		CHECK(trespass_listener_close(place.listener) == 0);
		close_pair(pair);
	}
	/* Nobody listens there now; and one that is given up. */
	trespass_connecting *connecting = trespass_connect_start(place.address, TRESPASS_STREAM, NULL);
	if (connecting) {
		while (!trespass_connect_finish(connecting) && errno == EAGAIN)
			wait_for(trespass_connect_fd(connecting), POLLIN);
		CHECK(errno == ECONNREFUSED);
		CHECK(trespass_connect_close(connecting) == 0);
	} else {
		CHECK(errno == ECONNREFUSED);
	}
	place = listen_here(NULL);
	connecting = trespass_connect_start(place.address, TRESPASS_STREAM, NULL);
	CHECK(connecting && trespass_connect_close(connecting) == 0);
	CHECK(trespass_listener_close(place.listener) == 0);
}
