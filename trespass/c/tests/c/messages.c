/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

void messages(void)
{
	struct pair pair = connect_pair(TRESPASS_SEQPACKET, NULL);
	char in[32] = "";
	struct iovec gathered[] = { { "two ", 4 }, { "parts", 5 } };
	trespass_progress progress;

	CHECK(trespass_send(pair.client, "one", 3) == 0);
	CHECK(trespass_send(pair.client, NULL, 0) == 0);
	CHECK(trespass_sendv(pair.client, gathered, 2) == 0);
	CHECK(trespass_recv(pair.server, in, sizeof(in)) == 3 && !memcmp(in, "one", 3));
	CHECK(trespass_recv(pair.server, in, sizeof(in)) == 0);
	/* A message that does not fit stays. */
	REFUSED(trespass_recv(pair.server, in, 4), EINVAL);
	CHECK(strstr(trespass_error(), "9 bytes"));
	CHECK(trespass_recv(pair.server, in, sizeof(in)) == 9 && !memcmp(in, "two parts", 9));
	CHECK(trespass_sending(pair.client, &progress) == 0);
	CHECK(trespass_receiving(pair.client, &progress) == 0);

	REFUSED(trespass_read(pair.client, in, 1), EOPNOTSUPP);
	REFUSED(trespass_write(pair.client, in, 1), EOPNOTSUPP);
	CHECK(strstr(trespass_error(), "trespass_send"));
	CHECK(trespass_shutdown(pair.client, SHUT_WR) == 0);
	REFUSED(trespass_recv(pair.server, in, sizeof(in)), ENODATA);
	REFUSED(trespass_send(pair.client, "x", 1), EPIPE);
	REFUSED(trespass_shutdown(pair.client, 7), EINVAL);
	close_pair(pair);

	pair = connect_pair(TRESPASS_STREAM, NULL);
	REFUSED(trespass_send(pair.client, "x", 1), EOPNOTSUPP);
	REFUSED(trespass_recv(pair.client, in, 1), EOPNOTSUPP);
	REFUSED(trespass_sending(pair.client, &progress), EOPNOTSUPP);
	close_pair(pair);
}

#define LONG (3u << 20)

/* A message beyond both buffers, between two non-blocking sides. */
void messages_in_parts(void)
{
	struct pair pair = connect_pair(TRESPASS_SEQPACKET, NULL);
	unsigned char *out = malloc(LONG), *in = malloc(LONG);
	size_t sent = 0, got = 0;
	trespass_part part = { 0 };
	trespass_progress progress;
	long long until = now_ms() + LIMIT_MS;

	CHECK(out && in);
	fill(out, 0, LONG);
	CHECK(trespass_set_nonblocking(pair.client, 1) == 0);
	CHECK(trespass_set_nonblocking(pair.server, 1) == 0);
	REFUSED(trespass_send(pair.client, out, LONG), EINVAL);
	while (!part.last) {
		CHECK(now_ms() < until);
		if (sent < LONG) {
			ssize_t taken = trespass_send_part(pair.client, LONG, out + sent, LONG - sent);
			CHECK(taken > 0 || errno == EAGAIN);
			sent += taken > 0 ? (size_t)taken : 0;
			if (sent < LONG) {
				CHECK(trespass_sending(pair.client, &progress) == 1);
				CHECK(progress.done == sent && progress.total == LONG);
				REFUSED(trespass_send(pair.client, "x", 1), EINVAL);
			}
		} else {
			CHECK(trespass_readiness(pair.client) >= 0);
		}
		if (trespass_recv_part(pair.server, in + got, LONG - got, &part) == 0) {
			CHECK(part.total == LONG);
			got += part.length;
			CHECK(part.last || (trespass_receiving(pair.server, &progress) == 1 && progress.done == got));
		} else {
			CHECK(errno == EAGAIN);
		}
	}
	CHECK(got == LONG);
	check_bytes(in, 0, LONG);
	free(out);
	free(in);
	close_pair(pair);
}
