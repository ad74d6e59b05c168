/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "suite.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Accepts a connection, sends five bytes, and waits for its end. */
void victim(void)
{
	struct place place = listen_here(NULL);
	char in[1];

	printf("%s\n", place.address);
	fflush(stdout);
	trespass_connection *connection = trespass_accept(place.listener, TRESPASS_STREAM);
	CHECK(connection);
	write_all(connection, "hello", 5);
	CHECK(trespass_set_read_timeout(connection, LIMIT_MS) == 0);
	trespass_read(connection, in, 1);
}

/* A server is killed in the middle: each call says so, and no end of the stream is made up. */
void killed(void)
{
	int out[2];
	char address[32] = "", in[5];

	CHECK(!pipe(out));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		dup2(out[1], STDOUT_FILENO);
		execl(program, program, "victim", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	FILE *lines = fdopen(out[0], "r");
	CHECK(lines && fgets(address, sizeof(address), lines));
	address[strcspn(address, "\n")] = 0;
	trespass_connection *connection = trespass_connect(address, TRESPASS_STREAM, NULL);
	CHECK(connection && trespass_set_read_timeout(connection, LIMIT_MS) == 0);
	read_all(connection, in, 5);
	CHECK(!kill(child, SIGKILL));
	REFUSED(trespass_read(connection, in, 1), ECONNRESET);
	REFUSED(trespass_read(connection, in, 1), ECONNRESET);
	REFUSED(trespass_write(connection, in, 1), EPIPE);
	CHECK(trespass_close(connection) == 0);
	CHECK(waitpid(child, NULL, 0) == child);
	fclose(lines);
}

/* A child has copies of the parent's handles: calls fail, and a close disturbs nothing. */
void forked(void)
{
	struct pair pair = connect_pair(TRESPASS_STREAM, NULL);
	struct place place = listen_here(NULL);
	char in[4];
	int status;

	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(20);
		REFUSED(trespass_read(pair.client, in, 1), ENOTCONN);
		REFUSED(trespass_write(pair.client, in, 1), ENOTCONN);
		REFUSED_NULL(trespass_accept(place.listener, TRESPASS_STREAM), ENOTCONN);
		CHECK(strstr(trespass_error(), "which has forked"));
		close_pair(pair);
		CHECK(trespass_listener_close(place.listener) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	write_all(pair.client, "goes", 4);
	read_all(pair.server, in, 4);
	CHECK(!memcmp(in, "goes", 4));
	CHECK(trespass_listener_close(place.listener) == 0);
	close_pair(pair);
}
