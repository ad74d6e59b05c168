/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

#define LENGTH 20000

/* A filled buffer. */
static trespass_buffer *filled(trespass_connection *connection, size_t from)
{
	trespass_buffer *buffer = trespass_buffer_new(connection, LENGTH);

	CHECK(buffer && trespass_buffer_length(buffer) >= LENGTH);
	fill(trespass_buffer_data(buffer), from, LENGTH);
	return buffer;
}

/* Checks all pieces of received data, and returns its length. */
static size_t check_received(trespass_received *received, size_t from)
{
	size_t total = 0, length = 0;
	const void *piece;

	CHECK(received);
	for (size_t n = 0; (piece = trespass_received_piece(received, n, &length)); n++) {
		check_bytes(piece, from + total, length);
		total += length;
	}
	CHECK(length == 0 && (ssize_t)total == trespass_received_length(received));
	CHECK(trespass_received_release(received) == 0);
	return total;
}

/* Takes the buffer of the only send. */
static void complete(trespass_connection *connection, uint64_t ticket)
{
	trespass_completion completion;

	CHECK(trespass_completion_wait(connection, &completion) == 1);
	CHECK(completion.ticket == ticket && completion.left == 0 && completion.sent == 1);
	CHECK(trespass_buffer_length(completion.buffer) >= LENGTH);
	CHECK(trespass_buffer_release(completion.buffer) == 0);
	CHECK(trespass_completion_wait(connection, &completion) == 0);
	CHECK(trespass_completion_poll(connection, &completion) == 0);
}

void zero_copy_stream(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	trespass_buffer *buffer = filled(pair.client, 7);
	trespass_completion completion;
	uint64_t ticket = 0;
	size_t got = 0;

	REFUSED_NULL(trespass_buffer_new(pair.client, (size_t)1 << 40), EINVAL);
	/* A send that is refused leaves the buffer to the program. */
	size_t more = (size_t)trespass_buffer_length(buffer) + 1;
	REFUSED(trespass_send_buffer(pair.client, buffer, more, &ticket), EINVAL);
	check_bytes(trespass_buffer_data(buffer), 7, LENGTH);
	CHECK(trespass_send_buffer(pair.client, buffer, LENGTH, &ticket) == 0);
	while (got < LENGTH)
		got += check_received(trespass_recv_buffer(pair.server), 7 + got);
	CHECK(got == LENGTH);
	complete(pair.client, ticket);
	CHECK(trespass_shutdown(pair.client, SHUT_WR) == 0);
	CHECK(check_received(trespass_recv_buffer(pair.server), 0) == 0);

	/* A connection that fails returns its buffers. */
	buffer = filled(pair.server, 0);
	CHECK(trespass_close(pair.client) == 0);
	while (trespass_write(pair.server, "x", 1) == 1)
		;
	CHECK(errno == EPIPE || errno == ECONNRESET);
	REFUSED(trespass_send_buffer(pair.server, buffer, LENGTH, NULL), EPIPE);
	CHECK(trespass_completion_poll(pair.server, &completion) == 0);
	/* A buffer outlives its connection. */
	CHECK(trespass_close(pair.server) == 0);
	check_bytes(trespass_buffer_data(buffer), 0, LENGTH);
	CHECK(trespass_buffer_release(buffer) == 0);
}

void zero_copy_messages(void)
{
	struct pair pair = connect_pair(TRESPASS_SEQPACKET, NULL);
	uint64_t tickets[2];
	trespass_part part = { 0 };
	size_t got = 0;

	CHECK(trespass_send_buffer(pair.client, filled(pair.client, 0), LENGTH, &tickets[0]) == 0);
	CHECK(check_received(trespass_recv_buffer(pair.server), 0) == LENGTH);
	complete(pair.client, tickets[0]);
	CHECK(trespass_send_buffer(pair.client, filled(pair.client, 3), LENGTH, &tickets[1]) == 0);
	CHECK(tickets[1] > tickets[0]);
	while (!part.last) {
		got += check_received(trespass_recv_part_buffer(pair.server, &part), 3 + got);
		CHECK(part.total == LENGTH);
	}
	CHECK(got == LENGTH);
	complete(pair.client, tickets[1]);
	CHECK(trespass_shutdown(pair.client, SHUT_WR) == 0);
	REFUSED_NULL(trespass_recv_part_buffer(pair.server, &part), ENODATA);
	close_pair(pair);
}
