/* hub_os.h - the os of a hub in a simulated world: all nodes share the hub, so its clock is that of
   the node that runs. Include after sim.h. */
#ifndef HUB_OS_INCLUDED
#define HUB_OS_INCLUDED

static void *hub_alloc(void *user, uint64_t bytes) {
    void *p = NULL;
    (void)user;
    return posix_memalign(&p, 64, (size_t)bytes) == 0 ? p : NULL;
}
static void hub_free(void *user, void *p) {
    (void)user;
    free(p);
}
static uint64_t hub_now(void *user) {
    return sim__os_now((*(sim_world *const *)user)->running);
}
static void hub_sleep_until(void *user, uint64_t deadline_ns) {
    sim__os_sleep_until((*(sim_world *const *)user)->running, deadline_ns);
}

/* `world` is read whenever the hub asks for the time. */
static cdp_os hub_os_of(sim_world **world) {
    return (cdp_os){.user = world,
        .alloc = hub_alloc,
        .release = hub_free,
        .now_ns = hub_now,
        .sleep_until = hub_sleep_until};
}

#endif
