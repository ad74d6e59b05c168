/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The sides of an exchange of messages with a program in another language. */
#include "suite.h"

/* Lengths around the borders of frames and buffers. */
static const size_t lengths[] = { 0, 1, 255, 4096, 8193, 65537, 300000 };

#define LONGEST 300000

static unsigned char message[LONGEST];

/* Echoes messages to one client until their end. */
void serve_messages(void)
{
	struct place place = listen_here(NULL);
	ssize_t got;

	printf("listening on port %d\n", trespass_listener_port(place.listener));
	fflush(stdout);
	trespass_connection *client = trespass_accept(place.listener, TRESPASS_SEQPACKET);
	CHECK(client && trespass_set_read_timeout(client, LIMIT_MS) == 0);
	printf("a client over %s\n", trespass_transport(client));
	fflush(stdout);
	while ((got = trespass_recv(client, message, sizeof(message))) >= 0)
		CHECK(trespass_send(client, message, (size_t)got) == 0);
	CHECK(errno == ENODATA);
	CHECK(trespass_close(client) == 0 && trespass_listener_close(place.listener) == 0);
}

/* Sends messages, and compares their echoes. */
void ask_messages(const char *address)
{
	trespass_connection *server = trespass_connect(address, TRESPASS_SEQPACKET, NULL);

	CHECK(server && trespass_set_read_timeout(server, LIMIT_MS) == 0);
	for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
		fill(message, n, lengths[n]);
		CHECK(trespass_send(server, message, lengths[n]) == 0);
		memset(message, 0, sizeof(message));
		CHECK(trespass_recv(server, message, sizeof(message)) == (ssize_t)lengths[n]);
		check_bytes(message, n, lengths[n]);
	}
	CHECK(trespass_shutdown(server, SHUT_WR) == 0);
	REFUSED(trespass_recv(server, message, sizeof(message)), ENODATA);
	CHECK(trespass_close(server) == 0);
}
