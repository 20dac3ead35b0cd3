// Attaches filters of packets to sockets, and closes them: each is an area for the program, and executable memory for
// what the kernel compiles it to. For the load of `init.sh`: filters COUNT
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

// Sockets that are open at a time, and instructions of a filter.
enum { OPEN = 32, LENGTH = 700 };

int main(int argc, char **argv)
{
	static struct sock_filter code[LENGTH];
	struct sock_fprog program = { .len = LENGTH, .filter = code };
	int sockets[OPEN], count = argc > 1 ? atoi(argv[1]) : OPEN;

	for (int i = 0; i < LENGTH; i++)
		code[i] = (struct sock_filter)BPF_STMT(i + 1 < LENGTH ? BPF_LD | BPF_IMM : BPF_RET | BPF_K, i);
	for (int done = 0; done < count; done += OPEN) {
		for (int i = 0; i < OPEN; i++) {
			sockets[i] = socket(AF_UNIX, SOCK_DGRAM, 0);
			if (sockets[i] < 0 || setsockopt(sockets[i], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program))) {
				perror("filters");
				return 1;
			}
		}
		for (int i = 0; i < OPEN; i++)
			close(sockets[i]);
	}
	return 0;
}
