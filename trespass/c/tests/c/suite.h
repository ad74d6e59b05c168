/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the cases of the suite share. A failed check ends the program. */
#ifndef SUITE_H
#define SUITE_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trespass.h>

/* The limit of a wait of a case that works. Each is far shorter. */
#define LIMIT_MS 20000

#define FAIL(...)                                                       \
	do {                                                            \
		fprintf(stderr, "%s:%d: not so: ", __FILE__, __LINE__); \
		fprintf(stderr, __VA_ARGS__);                           \
		fprintf(stderr, "\n");                                  \
		abort();                                                \
	} while (0)

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition))                                                                   \
			FAIL("%s (errno %d, latest failure: %s)", #condition, errno, trespass_error()); \
	} while (0)

/* A call that fails with a number of errno, and a text. */
#define REFUSED(call, number)                                                                         \
	do {                                                                                          \
		errno = 0;                                                                            \
		if ((call) != -1 || errno != (number) || !*trespass_error())                          \
			FAIL("%s fails with %s: errno %d, %s", #call, #number, errno, trespass_error()); \
	} while (0)

/* The same for a call that returns a pointer. */
#define REFUSED_NULL(call, number)                                                                    \
	do {                                                                                          \
		errno = 0;                                                                            \
		if ((call) != NULL || errno != (number) || !*trespass_error())                        \
			FAIL("%s fails with %s: errno %d, %s", #call, #number, errno, trespass_error()); \
	} while (0)

struct pair {
	trespass_connection *client;
	trespass_connection *server;
};

/* Connects within the process, with timeouts so that no case waits for ever. `options` may be NULL. */
struct pair connect_pair(int kind, const trespass_options *options);
void close_pair(struct pair pair);

/* The host's address for listeners: SUITE_ADDRESS, by default the loopback's. */
const char *own_address(void);

/* A listener at a free port of that address, and its address as text. */
struct place {
	trespass_listener *listener;
	char address[32];
};
struct place listen_here(const trespass_options *options);

/* Loops for the rest of what a call left. */
void write_all(trespass_connection *connection, const void *bytes, size_t length);
void read_all(trespass_connection *connection, void *bytes, size_t length);

/* The byte at a place of a reproducible sequence. */
unsigned char byte_at(size_t at);
void fill(void *bytes, size_t from, size_t length);
void check_bytes(const void *bytes, size_t from, size_t length);

/* Polls for an event of a descriptor. */
void wait_for(int descriptor, short event);

/* Milliseconds of a clock that never goes back. */
long long now_ms(void);

/* "RDMA" or "TCP", as SUITE_TRANSPORT says. */
const char *expected_transport(void);

/* The program's own path, for cases with two processes. */
extern const char *program;

void streams(void);
void streams_end(void);
void streams_wait(void);
void streams_large(void);
void messages(void);
void messages_in_parts(void);
void nonblocking_poll(void);
void nonblocking_epoll(void);
void nonblocking_connect(void);
void halves(void);
void busy(void);
void signals(void);
void options(void);
void null_arguments(void);
void wrong_handles(void);
void zero_copy_stream(void);
void zero_copy_messages(void);
void workers(void);
void worker_failures(void);
void killed(void);
void forked(void);

/* The other process of `killed`. */
void victim(void);

/* The sides of an exchange of messages with a program in another language. */
void serve_messages(void);
void ask_messages(const char *address);

#endif
