/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>

/* Polls for the next event of a kind. Others are skipped, but no returned buffer. */
static trespass_event next(trespass_worker *worker, uint32_t kind)
{
	trespass_event event;
	long long until = now_ms() + LIMIT_MS;

	do {
		CHECK(now_ms() < until);
		/* The descriptor does not show queued bytes: a poll without waiting comes first. */
		ssize_t count = trespass_worker_poll(worker, &event, 1, 0);
		if (count == 0) {
			wait_for(trespass_worker_fd(worker), POLLIN);
			count = trespass_worker_poll(worker, &event, 1, 0);
		}
		CHECK(count >= 0);
		if (count == 0)
			event.event = 0;
		CHECK(event.event == kind || event.event != TRESPASS_EVENT_COMPLETED);
		CHECK(event.event == kind || event.event != TRESPASS_EVENT_FAILED);
	} while (event.event != kind);
	return event;
}

/* A worker with a listener, and the address. */
static trespass_worker *serving(int kind, trespass_key *listener, char *address, size_t size)
{
	trespass_worker *worker = trespass_worker_new(NULL);
	struct sockaddr_in local;
	socklen_t length = sizeof(local);

	CHECK(worker);
	snprintf(address, size, "%s:0", own_address());
	CHECK(trespass_worker_listen(worker, address, kind, listener) == 0 && *listener);
	CHECK(trespass_worker_local_addr(worker, *listener, (struct sockaddr *)&local, &length) == 0);
	snprintf(address, size, "%s:%d", own_address(), ntohs(local.sin_port));
	return worker;
}

static void *ask(void *address)
{
	trespass_connection *client = trespass_connect(address, TRESPASS_STREAM, NULL);
	char in[5];

	CHECK(client && trespass_set_read_timeout(client, LIMIT_MS) == 0);
	write_all(client, "hello", 5);
	read_all(client, in, 5);
	CHECK(!memcmp(in, "hello", 5));
	CHECK(trespass_read(client, in, 5) == 0);
	CHECK(trespass_close(client) == 0);
	return NULL;
}

/* A worker echoes to a client in another thread. */
static void serve_a_client(void)
{
	trespass_key listener;
	char address[32], in[8];
	trespass_worker *worker = serving(TRESPASS_STREAM, &listener, address, sizeof(address));
	size_t got = 0;
	pthread_t client;

	CHECK(trespass_worker_set_tag(worker, listener, 77) == 0);
	CHECK(!pthread_create(&client, NULL, ask, address));
	trespass_event event = next(worker, TRESPASS_EVENT_ACCEPTED);
	CHECK(event.listener == listener && event.tag == 77 && event.key != listener);
	CHECK(!strcmp(trespass_worker_transport(worker, event.key), expected_transport()));
	CHECK(trespass_worker_set_tag(worker, event.key, 78) == 0);
	while (got < 5) {
		ssize_t now = trespass_worker_read(worker, event.key, in + got, sizeof(in) - got);
		CHECK(now > 0 || errno == EAGAIN);
		got += now > 0 ? (size_t)now : 0;
		if (got < 5)
			CHECK(next(worker, TRESPASS_EVENT_READY).tag == 78);
	}
	struct iovec parts[] = { { in, 2 }, { in + 2, 2 } };
	CHECK(trespass_worker_set_cork(worker, event.key, 1) == 0);
	CHECK(trespass_worker_writev(worker, event.key, parts, 2) == 4);
	CHECK(trespass_worker_set_cork(worker, event.key, 0) == 0);
	CHECK(trespass_worker_write(worker, event.key, in + 4, 1) == 1);
	CHECK(trespass_worker_shutdown(worker, event.key, SHUT_WR) == 0);
	ssize_t end;
	while ((end = trespass_worker_read(worker, event.key, in, sizeof(in))) < 0) {
		CHECK(errno == EAGAIN);
		next(worker, TRESPASS_EVENT_READY);
	}
	CHECK(end == 0);
	CHECK(trespass_worker_close_key(worker, event.key) == 0);
	REFUSED(trespass_worker_write(worker, event.key, in, 1), ENOTCONN);
	CHECK(trespass_worker_close_key(worker, event.key) == 0);
	CHECK(!pthread_join(client, NULL));
	CHECK(trespass_worker_close(worker) == 0);
}

/* A worker has both ends of a connection for messages. */
static void exchange_messages(void)
{
	trespass_key listener, mine;
	char address[32], in[16];
	trespass_worker *worker = serving(TRESPASS_SEQPACKET, &listener, address, sizeof(address));
	struct sockaddr_in local, peer;
	socklen_t length = sizeof(local);
	uint64_t ticket;

	CHECK(trespass_worker_connect(worker, address, TRESPASS_SEQPACKET, &mine) == 0);
	CHECK(trespass_worker_set_tag(worker, mine, 5) == 0);
	trespass_event events[2];
	size_t found = 0;
	trespass_key other = 0;
	long long until = now_ms() + LIMIT_MS;
	while (found < 2) {
		trespass_event event;
		CHECK(now_ms() < until);
		ssize_t count = trespass_worker_poll(worker, &event, 1, LIMIT_MS);
		CHECK(count >= 0);
		if (count == 1 && event.event == TRESPASS_EVENT_ACCEPTED)
			other = (events[found++] = event).key;
		if (count == 1 && event.event == TRESPASS_EVENT_CONNECTED)
			CHECK((events[found++] = event).key == mine && event.tag == 5);
	}
	CHECK(trespass_worker_local_addr(worker, mine, (struct sockaddr *)&local, &length) == 0);
	CHECK(trespass_worker_peer_addr(worker, other, (struct sockaddr *)&peer, &length) == 0);
	CHECK(!memcmp(&local, &peer, sizeof(local)));

	CHECK(trespass_worker_set_interest(worker, mine, TRESPASS_WRITABLE) == 0);
	CHECK(trespass_worker_send(worker, mine, "message", 7) == 0);
	ssize_t got;
	while ((got = trespass_worker_recv(worker, other, in, sizeof(in))) < 0) {
		CHECK(errno == EAGAIN);
		CHECK(next(worker, TRESPASS_EVENT_READY).key == other);
	}
	CHECK(got == 7 && !memcmp(in, "message", 7));

	trespass_buffer *buffer = trespass_worker_buffer_new(worker, 64);
	CHECK(buffer);
	memcpy(trespass_buffer_data(buffer), "lent", 4);
	REFUSED(trespass_worker_send_buffer(worker, listener, buffer, 4, &ticket), ENOTCONN);
	CHECK(trespass_worker_send_buffer(worker, mine, buffer, 4, &ticket) == 0);
	trespass_received *received = NULL;
	int completed = 0;
	while (!received || !completed) {
		trespass_event event;
		CHECK(now_ms() < until && trespass_worker_poll(worker, &event, 1, LIMIT_MS) == 1);
		if (event.event == TRESPASS_EVENT_COMPLETED) {
			CHECK(event.key == mine && event.completion.ticket == ticket);
			CHECK(event.completion.sent && !event.completion.left);
			CHECK(trespass_buffer_release(event.completion.buffer) == 0);
			completed = 1;
		} else if (!received) {
			received = trespass_worker_recv_buffer(worker, other);
			CHECK(received || errno == EAGAIN);
		}
	}
	size_t piece;
	CHECK(!memcmp(trespass_received_piece(received, 0, &piece), "lent", 4) && piece == 4);
	CHECK(trespass_received_release(received) == 0);
	CHECK(trespass_worker_close(worker) == 0);
}

static void *wake(void *waker)
{
	CHECK(trespass_waker_wake(waker) == 0);
	return NULL;
}

void workers(void)
{
	serve_a_client();
	exchange_messages();

	trespass_worker *worker = trespass_worker_new(NULL);
	trespass_event event;
	pthread_t thread;
	CHECK(worker);
	trespass_waker *waker = trespass_worker_waker(worker);
	CHECK(waker);
	CHECK(!pthread_create(&thread, NULL, wake, waker));
	CHECK(trespass_worker_poll(worker, &event, 1, -1) == 0);
	CHECK(!pthread_join(thread, NULL));

	/* A connection moves into the worker. */
	struct pair pair = connect_pair(TRESPASS_SEQPACKET, NULL);
	trespass_key key;
	char in[4];
	CHECK(trespass_worker_add(worker, pair.client, &key) == 0);
	CHECK(trespass_send(pair.server, "in", 2) == 0);
	ssize_t got;
	while ((got = trespass_worker_recv(worker, key, in, sizeof(in))) < 0) {
		CHECK(errno == EAGAIN);
		CHECK(next(worker, TRESPASS_EVENT_READY).key == key);
	}
	CHECK(got == 2 && !memcmp(in, "in", 2));
	CHECK(trespass_worker_close(worker) == 0);
	REFUSED(trespass_recv(pair.server, in, sizeof(in)), ENODATA);
	CHECK(trespass_close(pair.server) == 0);
	CHECK(trespass_waker_wake(waker) == 0 && trespass_waker_release(waker) == 0);
}

void worker_failures(void)
{
	struct place place = listen_here(NULL);
	trespass_worker *worker = trespass_worker_new(NULL);
	trespass_key key;
	char in[4];

	CHECK(worker && trespass_listener_close(place.listener) == 0);
	CHECK(trespass_worker_connect(worker, place.address, TRESPASS_STREAM, &key) == 0);
	REFUSED(trespass_worker_read(worker, key, in, 4), ENOTCONN);
	trespass_event event = next(worker, TRESPASS_EVENT_FAILED);
	CHECK(event.key == key && event.error == ECONNREFUSED);
	CHECK(event.text && strstr(event.text, place.address));
	REFUSED(trespass_worker_send(worker, key, "x", 1), ENOTCONN);
	REFUSED_NULL(trespass_worker_transport(worker, 12345678), ENOTCONN);
	REFUSED(trespass_worker_listen(worker, "127.0.0.1:x", TRESPASS_STREAM, &key), EINVAL);
	CHECK(trespass_worker_close(worker) == 0);
}
