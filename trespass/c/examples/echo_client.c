/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sends a text to an echo server and prints the answer: `echo_client HOST:PORT TEXT`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trespass.h>

static void die(const char *what)
{
	fprintf(stderr, "echo_client: %s: %s\n", what, trespass_error());
	exit(1);
}

int main(int argc, char **argv)
{
	char bytes[4096];
	ssize_t count;

	if (argc != 3) {
		fprintf(stderr, "usage: echo_client HOST:PORT TEXT\n");
		return 2;
	}
	trespass_connection *server = trespass_connect(argv[1], TRESPASS_STREAM, NULL);
	if (!server)
		die("cannot connect");
	const char *reason = trespass_fallback_reason(server);
	fprintf(stderr, "connected over %s%s%s\n", trespass_transport(server), reason ? ": " : "",
		reason ? reason : "");
	for (const char *text = argv[2]; *text; text += count) {
		count = trespass_write(server, text, strlen(text));
		if (count < 0)
			die("cannot write");
	}
	if (trespass_shutdown(server, SHUT_WR) < 0)
		die("cannot end");
	while ((count = trespass_read(server, bytes, sizeof(bytes))) > 0)
		fwrite(bytes, 1, (size_t)count, stdout);
	if (count < 0)
		die("cannot read");
	putchar('\n');
	trespass_close(server);
	return 0;
}
