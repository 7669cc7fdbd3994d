// resolve FILE 4|6|0 NAME: the addresses of a name by this C library's getaddrinfo, with another resolv.conf.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_CANONNAME}, *found;
	char text[INET6_ADDRSTRLEN];

	if (argc != 4 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount(argv[1], "/etc/resolv.conf", NULL, MS_BIND, NULL)) {
		perror("resolve");
		return 2;
	}
	alarm(15); // glibc waits for an answer over TCP for ever
	hints.ai_family = argv[2][0] == '4' ? AF_INET : argv[2][0] == '6' ? AF_INET6 : AF_UNSPEC;
	int e = getaddrinfo(argv[3], NULL, &hints, &found);
	if (e) {
		printf("%s\n", e == EAI_NONAME ? "NONAME" : e == EAI_AGAIN ? "AGAIN" : gai_strerror(e));
		return 1;
	}
	printf("%s\n", found->ai_canonname);
	for (; found; found = found->ai_next) {
		void *a = found->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)found->ai_addr)->sin_addr
						      : (void *)&((struct sockaddr_in6 *)found->ai_addr)->sin6_addr;
		printf("%s\n", inet_ntop(found->ai_family, a, text, sizeof text));
	}
	return 0;
}
