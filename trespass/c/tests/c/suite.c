/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The cases: `suite NAME...` runs some, `suite` all of them. */
#include "suite.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

const char *program;

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "streams", streams },
	{ "streams_end", streams_end },
	{ "streams_wait", streams_wait },
	{ "streams_large", streams_large },
	{ "messages", messages },
	{ "messages_in_parts", messages_in_parts },
	{ "nonblocking_poll", nonblocking_poll },
	{ "nonblocking_epoll", nonblocking_epoll },
	{ "nonblocking_connect", nonblocking_connect },
	{ "halves", halves },
	{ "busy", busy },
	{ "signals", signals },
	{ "options", options },
	{ "null_arguments", null_arguments },
	{ "wrong_handles", wrong_handles },
	{ "zero_copy_stream", zero_copy_stream },
	{ "zero_copy_messages", zero_copy_messages },
	{ "workers", workers },
	{ "worker_failures", worker_failures },
	{ "killed", killed },
	{ "forked", forked },
};

#define CASES (sizeof(cases) / sizeof(cases[0]))

static int is_asked_for(const char *name, int argc, char **argv)
{
	for (int n = 1; n < argc; n++)
		if (!strcmp(argv[n], name))
			return 1;
	return argc == 1;
}

int main(int argc, char **argv)
{
	size_t ran = 0;

	/* Ends the program if a case hangs. */
	alarm(100);
	program = argv[0];
	if (argc == 2 && !strcmp(argv[1], "victim")) {
		victim();
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "serve_messages")) {
		serve_messages();
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "ask_messages")) {
		ask_messages(argv[2]);
		return 0;
	}
	for (size_t n = 0; n < CASES; n++) {
		if (!is_asked_for(cases[n].name, argc, argv))
			continue;
		printf("case %s\n", cases[n].name);
		fflush(stdout);
		cases[n].run();
		ran++;
	}
	printf("ran %zu of %zu cases\n", ran, CASES);
	return ran == 0;
}

const char *own_address(void)
{
	const char *address = getenv("SUITE_ADDRESS");

	return address ? address : "127.0.0.1";
}

struct place listen_here(const trespass_options *options)
{
	struct place place;

	snprintf(place.address, sizeof(place.address), "%s:0", own_address());
	place.listener = trespass_listen(place.address, options);
	CHECK(place.listener);
	CHECK(trespass_listener_set_timeout(place.listener, LIMIT_MS) == 0);
	snprintf(place.address, sizeof(place.address), "%s:%d", own_address(),
		 trespass_listener_port(place.listener));
	return place;
}

struct pair connect_pair(int kind, const trespass_options *options)
{
	struct place place = listen_here(options);
	struct pair pair;

	/* A thread of the library completes the connection before it is accepted. */
	pair.client = trespass_connect(place.address, kind, options);
	CHECK(pair.client);
	pair.server = trespass_accept(place.listener, kind);
	CHECK(pair.server);
	CHECK(trespass_listener_close(place.listener) == 0);
	trespass_connection *both[] = { pair.client, pair.server };
	for (int n = 0; n < 2; n++) {
		CHECK(trespass_set_read_timeout(both[n], LIMIT_MS) == 0);
		CHECK(trespass_set_write_timeout(both[n], LIMIT_MS) == 0);
	}
	return pair;
}

void close_pair(struct pair pair)
{
	CHECK(trespass_close(pair.client) == 0);
	CHECK(trespass_close(pair.server) == 0);
}

void write_all(trespass_connection *connection, const void *bytes, size_t length)
{
	const char *at = bytes;

	while (length > 0) {
		ssize_t written = trespass_write(connection, at, length);
		CHECK(written > 0);
		at += written;
		length -= (size_t)written;
	}
}

void read_all(trespass_connection *connection, void *bytes, size_t length)
{
	char *at = bytes;

	while (length > 0) {
		ssize_t got = trespass_read(connection, at, length);
		CHECK(got > 0);
		at += got;
		length -= (size_t)got;
	}
}

unsigned char byte_at(size_t at)
{
	return (unsigned char)((at * 2654435761u) >> 7);
}

void fill(void *bytes, size_t from, size_t length)
{
	for (size_t n = 0; n < length; n++)
		((unsigned char *)bytes)[n] = byte_at(from + n);
}

void check_bytes(const void *bytes, size_t from, size_t length)
{
	for (size_t n = 0; n < length; n++)
		if (((const unsigned char *)bytes)[n] != byte_at(from + n))
			FAIL("byte %zu is that of the sequence", from + n);
}

void wait_for(int descriptor, short event)
{
	struct pollfd waited = { .fd = descriptor, .events = event };

	CHECK(descriptor >= 0);
	CHECK(poll(&waited, 1, LIMIT_MS) == 1);
}

long long now_ms(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

const char *expected_transport(void)
{
	const char *transport = getenv("SUITE_TRANSPORT");

	if (!transport)
		FAIL("SUITE_TRANSPORT is set");
	return transport;
}
