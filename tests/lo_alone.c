/* lo_alone.c - getifaddrs() that names the loopback interface alone: qemu hands netlink messages to
   programs of the other byte order in a form that C libraries read for ever. Linked statically with
   programs that tests/platforms.sh and tests/byte_orders.sh run under qemu. */
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

static struct ifaddrs lo;
static struct sockaddr_in address;

int getifaddrs(struct ifaddrs **list) {
    static char name[] = "lo";
    memset(&lo, 0, sizeof lo);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    lo.ifa_name = name;
    lo.ifa_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING;
    lo.ifa_addr = (struct sockaddr *)&address;
    *list = &lo;
    return 0;
}

void freeifaddrs(struct ifaddrs *list) {
    (void)list;
}
