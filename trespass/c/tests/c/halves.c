/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#define MESSAGES 200

static void *send_many(void *connection)
{
	for (unsigned n = 0; n < MESSAGES; n++)
		CHECK(trespass_send(connection, &n, sizeof(n)) == 0);
	/* Closing the half tells the peer that nothing more comes. */
	CHECK(trespass_close(connection) == 0);
	return NULL;
}

static void *echo_messages(void *connection)
{
	char in[16];
	ssize_t got;

	while ((got = trespass_recv(connection, in, sizeof(in))) >= 0)
		CHECK(trespass_send(connection, in, (size_t)got) == 0);
	CHECK(errno == ENODATA);
	CHECK(trespass_shutdown(connection, SHUT_WR) == 0);
	return NULL;
}

static void *write_sequence(void *connection)
{
	static unsigned char out[300000];

	fill(out, 0, sizeof(out));
	write_all(connection, out, sizeof(out));
	CHECK(trespass_close(connection) == 0);
	return NULL;
}

/* Two threads have a half each, of messages and of a stream. */
void halves(void)
{
	struct pair pair = connect_pair(TRESPASS_SEQPACKET, NULL);
	trespass_connection *receiving, *sending;
	pthread_t sender, echo;
	char in[16];
	trespass_key key;

	CHECK(trespass_split(pair.client, &receiving, &sending) == 0);
	REFUSED(trespass_send(receiving, "x", 1), EOPNOTSUPP);
	REFUSED(trespass_recv(sending, in, 1), EOPNOTSUPP);
	REFUSED(trespass_split(sending, &receiving, &sending), EOPNOTSUPP);
	REFUSED_NULL(trespass_recv_buffer(sending), EOPNOTSUPP);
	CHECK(!strcmp(trespass_transport(sending), trespass_transport(receiving)));
	CHECK(!pthread_create(&sender, NULL, send_many, sending));
	CHECK(!pthread_create(&echo, NULL, echo_messages, pair.server));
	for (unsigned n = 0; n < MESSAGES; n++) {
		CHECK(trespass_recv(receiving, in, sizeof(in)) == sizeof(n));
		CHECK(!memcmp(in, &n, sizeof(n)));
	}
	REFUSED(trespass_recv(receiving, in, sizeof(in)), ENODATA);
	CHECK(!pthread_join(sender, NULL) && !pthread_join(echo, NULL));
	CHECK(trespass_close(receiving) == 0 && trespass_close(pair.server) == 0);

	static unsigned char out[300000];
	pair = connect_pair(TRESPASS_STREAM, NULL);
	CHECK(trespass_split(pair.client, &receiving, &sending) == 0);
	REFUSED(trespass_write(receiving, "x", 1), EOPNOTSUPP);
	REFUSED(trespass_read(sending, in, 1), EOPNOTSUPP);
	trespass_worker *worker = trespass_worker_new(NULL);
	CHECK(worker);
	REFUSED(trespass_worker_add(worker, sending, &key), EOPNOTSUPP);
	CHECK(trespass_worker_close(worker) == 0);
	CHECK(!pthread_create(&sender, NULL, write_sequence, sending));
	read_all(pair.server, out, sizeof(out));
	check_bytes(out, 0, sizeof(out));
	write_all(pair.server, "done", 4);
	read_all(receiving, in, 4);
	CHECK(!pthread_join(sender, NULL));
	CHECK(trespass_read(pair.server, in, 1) == 0);
	CHECK(trespass_close(receiving) == 0 && trespass_close(pair.server) == 0);
}

static void *receive_one(void *connection)
{
	char in[8];
	ssize_t got;

	/* The other thread may be the earlier one. */
	while ((got = trespass_recv(connection, in, sizeof(in))) < 0)
		CHECK(errno == EBUSY);
	CHECK(got == 3);
	return NULL;
}

/* Two threads with one handle for messages: the later call is refused and does no harm. */
void busy(void)
{
	struct pair pair = connect_pair(TRESPASS_SEQPACKET, NULL);
	trespass_progress progress;
	pthread_t receiver;
	long long until = now_ms() + LIMIT_MS;

	CHECK(!pthread_create(&receiver, NULL, receive_one, pair.client));
	/* Soon the thread is in its call. */
	while (trespass_receiving(pair.client, &progress) == 0) {
		CHECK(now_ms() < until);
		sched_yield();
	}
	CHECK(errno == EBUSY);
	REFUSED(trespass_send(pair.client, "x", 1), EBUSY);
	REFUSED(trespass_set_nonblocking(pair.client, 1), EBUSY);
	REFUSED(trespass_close(pair.client), EBUSY);
	CHECK(trespass_send(pair.server, "end", 3) == 0);
	CHECK(!pthread_join(receiver, NULL));
	CHECK(trespass_send(pair.client, "x", 1) == 0);
	close_pair(pair);
}

static volatile sig_atomic_t handled;

static void handle(int number)
{
	(void)number;
	handled++;
}

static void *read_one(void *connection)
{
	char in[1];

	CHECK(trespass_read(connection, in, 1) == 1);
	return NULL;
}

static void *accept_one(void *listener)
{
	trespass_connection *accepted = trespass_accept(listener, TRESPASS_STREAM);

	CHECK(accepted);
	return accepted;
}

static void *poll_once(void *worker)
{
	trespass_event event;

	CHECK(trespass_worker_poll(worker, &event, 1, LIMIT_MS) == 0);
	return NULL;
}

/* Has a thread handle 20 signals. */
static void interrupt(pthread_t thread)
{
	long long until = now_ms() + LIMIT_MS;

	handled = 0;
	for (int n = 1; n <= 20; n++) {
		CHECK(!pthread_kill(thread, SIGUSR1));
		while (handled < n) {
			CHECK(now_ms() < until);
			sched_yield();
		}
	}
}

/* A signal without SA_RESTART does not end a call that waits. */
void signals(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	struct place place = listen_here(NULL);
	struct sigaction action = { .sa_handler = handle };
	pthread_t waiting;
	void *accepted;

	CHECK(!sigaction(SIGUSR1, &action, NULL));
	CHECK(!pthread_create(&waiting, NULL, read_one, pair.client));
	interrupt(waiting);
	write_all(pair.server, "x", 1);
	CHECK(!pthread_join(waiting, NULL));
	close_pair(pair);

	CHECK(!pthread_create(&waiting, NULL, accept_one, place.listener));
	interrupt(waiting);
	pair.client = trespass_connect(place.address, TRESPASS_STREAM, NULL);
	CHECK(pair.client && !pthread_join(waiting, &accepted));
	pair.server = accepted;
	CHECK(trespass_listener_close(place.listener) == 0);
	close_pair(pair);

	trespass_worker *worker = trespass_worker_new(NULL);
	CHECK(worker);
	trespass_waker *waker = trespass_worker_waker(worker);
	CHECK(waker && !pthread_create(&waiting, NULL, poll_once, worker));
	interrupt(waiting);
	CHECK(trespass_waker_wake(waker) == 0);
	CHECK(!pthread_join(waiting, NULL));
	CHECK(trespass_waker_release(waker) == 0 && trespass_worker_close(worker) == 0);
}
