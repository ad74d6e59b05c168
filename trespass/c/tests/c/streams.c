/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>

/* Both sides see the same connection. */
static void check_addresses(struct pair pair)
{
	struct sockaddr_in local, peer;
	socklen_t length = sizeof(local);
	char small[4];

	CHECK(trespass_local_addr(pair.client, (struct sockaddr *)&local, &length) == 0);
	CHECK(length == sizeof(local) && local.sin_family == AF_INET);
	CHECK(local.sin_addr.s_addr == inet_addr(own_address()) && local.sin_port != 0);
	CHECK(trespass_peer_addr(pair.server, (struct sockaddr *)&peer, &length) == 0);
	CHECK(!memcmp(&local, &peer, sizeof(local)));
	/* A place that is too small is filled, and told the length. */
	length = sizeof(small);
	CHECK(trespass_peer_addr(pair.server, (struct sockaddr *)small, &length) == 0);
	CHECK(length == sizeof(peer) && !memcmp(small, &peer, sizeof(small)));
}

static void check_transport(struct pair pair)
{
	const char *transport = trespass_transport(pair.client);

	CHECK(transport && !strcmp(transport, expected_transport()));
	CHECK(!strcmp(trespass_transport(pair.server), transport));
	if (!strcmp(transport, "TCP")) {
		const char *reason = trespass_fallback_reason(pair.client);
		CHECK(reason && strstr(reason, "is configured to use TCP only"));
		CHECK(!trespass_device(pair.client));
	} else {
		CHECK(!trespass_fallback_reason(pair.client));
		CHECK(trespass_device(pair.client) && *trespass_device(pair.client));
	}
}

void streams(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	char out[] = "abcdefgh", in[16] = "";
	struct iovec gathered[] = { { out, 3 }, { NULL, 0 }, { out + 3, 5 } };
	struct iovec scattered[] = { { in, 2 }, { in + 2, 6 } };

	CHECK(!strcmp(trespass_version(), TRESPASS_VERSION));
	check_addresses(pair);
	check_transport(pair);
	write_all(pair.client, "ping", 4);
	CHECK(trespass_peek(pair.server, in, 2) == 2 && !memcmp(in, "pi", 2));
	read_all(pair.server, in, 4);
	CHECK(!memcmp(in, "ping", 4));
	CHECK(trespass_writev(pair.server, gathered, 3) == 8);
	CHECK(trespass_flush(pair.server) == 0);
	CHECK(trespass_drain(pair.server, LIMIT_MS) == 0);
	/* The bytes are on this side, so that the second buffer gets them, too. */
	CHECK(trespass_peek(pair.client, in, sizeof(in)) == 8);
	CHECK(trespass_readv(pair.client, scattered, 2) == 8 && !memcmp(in, out, 8));
	CHECK(trespass_read(pair.client, NULL, 0) == 0 && trespass_write(pair.client, NULL, 0) == 0);
	CHECK(trespass_take_error(pair.client) == 0);
	CHECK(trespass_set_cork(pair.client, 1) == 0);
	write_all(pair.client, "held", 4);
	CHECK(trespass_set_cork(pair.client, 0) == 0);
	read_all(pair.server, in, 4);
	CHECK(!memcmp(in, "held", 4));
	close_pair(pair);
}

/* Ends, closes and resets. A write never raises SIGPIPE, which would end this program. */
void streams_end(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	char in[8];

	CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
	write_all(pair.client, "last", 4);
	CHECK(trespass_shutdown(pair.client, SHUT_WR) == 0);
	REFUSED(trespass_write(pair.client, "x", 1), EPIPE);
	read_all(pair.server, in, 4);
	CHECK(trespass_read(pair.server, in, sizeof(in)) == 0);
	CHECK(trespass_read(pair.server, in, sizeof(in)) == 0);
	write_all(pair.server, "answer", 6);
	CHECK(trespass_close(pair.server) == 0);
	read_all(pair.client, in, 6);
	CHECK(trespass_read(pair.client, in, sizeof(in)) == 0);
	CHECK(trespass_close(pair.client) == 0);

	pair = connect_pair(TRESPASS_STREAM, NULL);
	CHECK(trespass_set_linger(pair.server, -1) == 0);
	CHECK(trespass_set_linger(pair.server, 0) == 0);
	write_all(pair.server, "lost", 4);
	CHECK(trespass_close(pair.server) == 0);
	/* Bytes that came before the reset may be read. */
	ssize_t got;
	while ((got = trespass_read(pair.client, in, sizeof(in))) > 0)
		;
	CHECK(got == -1 && errno == ECONNRESET);
	REFUSED(trespass_write(pair.client, "x", 1), EPIPE);
	REFUSED(trespass_write(pair.client, "x", 1), EPIPE);
	CHECK(trespass_close(pair.client) == 0);
}

/* Timeouts, and errors of connecting. */
void streams_wait(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	struct place place = listen_here(NULL);
	char in[8];

	CHECK(trespass_set_read_timeout(pair.client, 5) == 0);
	REFUSED(trespass_read(pair.client, in, sizeof(in)), EAGAIN);
	CHECK(trespass_set_write_timeout(pair.client, 5) == 0);
	static char block[1 << 20];
	ssize_t written;
	while ((written = trespass_write(pair.client, block, sizeof(block))) > 0)
		;
	CHECK(written == -1 && errno == EAGAIN);
	/* What is written needs the peer's program to read. */
	REFUSED(trespass_drain(pair.client, 5), ETIMEDOUT);
	close_pair(pair);

	CHECK(trespass_listener_set_timeout(place.listener, 5) == 0);
	REFUSED_NULL(trespass_accept(place.listener, TRESPASS_STREAM), EAGAIN);
	struct sockaddr_in address;
	socklen_t length = sizeof(address);
	CHECK(trespass_listener_addr(place.listener, (struct sockaddr *)&address, &length) == 0);
	CHECK(ntohs(address.sin_port) == trespass_listener_port(place.listener));
	REFUSED_NULL(trespass_listen(place.address, NULL), EADDRINUSE);
	CHECK(strstr(trespass_error(), "choose another port"));
	CHECK(trespass_listener_close(place.listener) == 0);
	REFUSED_NULL(trespass_connect(place.address, TRESPASS_STREAM, NULL), ECONNREFUSED);
	REFUSED_NULL(trespass_connect("127.0.0.1", TRESPASS_STREAM, NULL), EINVAL);
	CHECK(strstr(trespass_error(), "HOST:PORT"));
	REFUSED_NULL(trespass_connect("127.0.0.1:1", 0, NULL), EINVAL);
	REFUSED_NULL(trespass_connect("\xff:1", TRESPASS_STREAM, NULL), EINVAL);
	REFUSED_NULL(trespass_listen_with(-1, NULL), EBADF);
	REFUSED_NULL(trespass_listen_with(1000000, NULL), EBADF);

	/* A socket of the program becomes a listener. */
	int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr(own_address()) };
	CHECK(!bind(socket_fd, (struct sockaddr *)&any, sizeof(any)) && !listen(socket_fd, 8));
	place.listener = trespass_listen_with(socket_fd, NULL);
	CHECK(place.listener);
	/* A name, where the loopback's address is that of a device. */
	const char *host = strcmp(own_address(), "127.0.0.1") ? own_address() : "localhost";
	snprintf(place.address, sizeof(place.address), "%s:%d", host, trespass_listener_port(place.listener));
	pair.client = trespass_connect(place.address, TRESPASS_STREAM, NULL);
	CHECK(pair.client);
	pair.server = trespass_accept(place.listener, TRESPASS_STREAM);
	CHECK(pair.server);
	CHECK(trespass_listener_close(place.listener) == 0);
	close_pair(pair);
}

#define LARGE (8u << 20)

static void *write_large(void *connection)
{
	unsigned char *bytes = malloc(LARGE);

	CHECK(bytes);
	fill(bytes, 0, LARGE);
	write_all(connection, bytes, LARGE);
	free(bytes);
	CHECK(trespass_shutdown(connection, SHUT_WR) == 0);
	return NULL;
}

/* Two threads use one handle: one writes and one reads. */
void streams_large(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	static unsigned char in[100000];
	size_t got = 0;
	ssize_t now;
	pthread_t writer, echo;

	CHECK(!pthread_create(&writer, NULL, write_large, pair.client));
	CHECK(!pthread_create(&echo, NULL, write_large, pair.server));
	while ((now = trespass_read(pair.server, in, sizeof(in))) > 0) {
		check_bytes(in, got, (size_t)now);
		got += (size_t)now;
		/* The other way, as far as it has come. */
		read_all(pair.client, in, (size_t)now);
		check_bytes(in, got - (size_t)now, (size_t)now);
	}
	CHECK(now == 0 && got == LARGE);
	CHECK(trespass_read(pair.client, in, sizeof(in)) == 0);
	CHECK(!pthread_join(writer, NULL) && !pthread_join(echo, NULL));
	close_pair(pair);
}
