/* A slow network: two network interfaces, of which each is in a network namespace of its own, and what one sends the
 * other receives later, or never. For kernels without netem.
 *
 *     slow_link NAMESPACE ADDRESS NAMESPACE ADDRESS MICROSECONDS PERMILLE
 *
 * Namespaces are files, as in /run/netns; an address is one of version 4, the other's is its peer. MICROSECONDS: until
 * a packet is there; PERMILLE: of so many of a thousand nothing is heard again. Says "ready", and ends when it is
 * killed, and the interfaces with it. SIGUSR1: the cable is pulled, or put in again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 9000, QUEUE = 4096 };

struct packet {
    int64_t due_ns;
    size_t len;
    char bytes[MTU];
};

struct direction {
    int from, to;
    struct packet *queue;
    size_t head, count;
};

static volatile sig_atomic_t pulled;

static void pull(int signal)
{
    (void)signal;
    pulled = !pulled;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void set(int fd, unsigned long request, struct ifreq *what, const char *name)
{
    if (ioctl(fd, request, what) != 0)
        err(1, "%s", name);
}

/* An interface in a namespace. */
static int interface_in(const char *namespace, const char *address, const char *peer)
{
    int there = open(namespace, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET) != 0)
        err(1, "%s", namespace);
    close(there);
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tun < 0)
        err(1, "/dev/net/tun");
    struct ifreq request = { .ifr_name = "slow", .ifr_flags = IFF_TUN | IFF_NO_PI };
    set(tun, TUNSETIFF, &request, "TUNSETIFF");
    int socket_of = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
    *in = (struct sockaddr_in){ .sin_family = AF_INET };
    if (inet_pton(AF_INET, address, &in->sin_addr) != 1)
        errx(1, "%s: no address", address);
    set(socket_of, SIOCSIFADDR, &request, address);
    inet_pton(AF_INET, peer, &in->sin_addr);
    set(socket_of, SIOCSIFDSTADDR, &request, peer);
    request.ifr_mtu = MTU;
    set(socket_of, SIOCSIFMTU, &request, "SIOCSIFMTU");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    set(socket_of, SIOCSIFFLAGS, &request, "SIOCSIFFLAGS");
    close(socket_of);
    return tun;
}

int main(int argc, char **argv)
{
    if (argc != 7)
        errx(2, "usage: slow_link NAMESPACE ADDRESS NAMESPACE ADDRESS MICROSECONDS PERMILLE");
    int64_t delay_ns = strtoll(argv[5], NULL, 10) * 1000;
    long permille = strtol(argv[6], NULL, 10);
    int one = interface_in(argv[1], argv[2], argv[4]), other = interface_in(argv[3], argv[4], argv[2]);
    struct direction directions[2] = { { .from = one, .to = other }, { .from = other, .to = one } };
    for (int i = 0; i < 2; i++)
        if (!(directions[i].queue = calloc(QUEUE, sizeof(struct packet))))
            err(1, "no memory");
    /* Waits end when they should. */
    prctl(PR_SET_TIMERSLACK, 1);
    signal(SIGUSR1, pull);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < 2; i++) {
            struct direction *d = &directions[i];
            while (d->count < QUEUE) {
                struct packet *packet = &d->queue[(d->head + d->count) % QUEUE];
                ssize_t len = read(d->from, packet->bytes, MTU);
                if (len <= 0)
                    break;
                if (pulled || random() % 1000 < permille)
                    continue;
                packet->len = (size_t)len;
                packet->due_ns = now_ns() + delay_ns;
                d->count++;
            }
            while (d->count > 0 && d->queue[d->head].due_ns <= now_ns()) {
                /* What there is no room for is lost, as in a switch. */
                if (write(d->to, d->queue[d->head].bytes, d->queue[d->head].len) < 0 && errno != EAGAIN)
                    err(1, "write");
                d->head = (d->head + 1) % QUEUE;
                d->count--;
            }
            if (d->count > 0 && d->queue[d->head].due_ns < next)
                next = d->queue[d->head].due_ns;
        }
        int64_t wait = next == INT64_MAX ? 1000000000 : next - now_ns();
        struct timespec time = { wait > 0 ? wait / 1000000000 : 0, wait > 0 ? wait % 1000000000 : 0 };
        struct pollfd fds[2] = { { one, POLLIN, 0 }, { other, POLLIN, 0 } };
        if (ppoll(fds, 2, &time, NULL) < 0 && errno != EINTR)
            err(1, "poll");
    }
}
