/*  cdprun_elastic.h - the part of cdprun.c for machines that come and go

    Included by cdprun.c and by nothing else.

    HOW IT WORKS   Launchers are members of a job of their own, decided as the ranks of a program
    with cdp_elastic.h are: a compare-and-set register in the store for each epoch. An alarm ends an
    epoch, every launcher that lives arrives, one of them decides who is in the next. What ranks
    call a step is here the number of restarts that the job has used: an alarm of a failure raises
    it by one, and every decision holds it, so that it is equal everywhere.

    RESTART MODE   The ranks of an epoch end with it. As soon as a launcher knows the next decision
    and its own ranks have ended, it starts the next ones.
    STAY MODE      The ranks are members of a job of their own, and launchers decide nothing: each
    serves ranks, tells of their deaths, and starts new ones in their places.

    KEYS           ID/n/... as in cdp_elastic.h, of the launchers; ID/r/... of the ranks that stay;
    ID/A/failure, ID/A/go and ID/A/done of epoch A + 1; ID/final, ID/left, ID/restarts.

    SECTIONS       >>agent-store >>agent-epoch >>agent-end >>stay >>agent  */
/* SPDX-License-Identifier: MIT-0 OR Unlicense */

typedef struct agent {
    options *opts;              /* of the job: node_rank, nnodes and addr change with the epoch */
    cdp_elastic e, ranks;       /* only what the functions of elastic-store and turns use of them */
    cdp__elastic_decision last; /* the newest one, while this launcher waits to be taken in */
    uint64_t ran;               /* the epoch whose ranks run here or ran last; 0: none yet */
    uint32_t seen;              /* tickets */
    cdp__elastic_entry entry;   /* before the first epoch */
    cdp__elastic_settle settle; /* of the turn that goes on */
    int64_t waits;              /* ns: when it began to wait for machines */
    int64_t decided;            /* ns: when the last epoch ended here */
    bool handed_in;             /* the others may know this launcher */
    bool done;                  /* the job has ended well */
    int number;                 /* of its ticket */
    uint64_t charged;           /* --stay: restarts of the job, when this launcher asked last */
    uint64_t followed;          /* --stay: the newest epoch of the ranks in the event log */
    char will[240], addr[INET6_ADDRSTRLEN];
} agent;

/* ---- >>agent-store  The store of the job, and the first words in it. */

/* Whether a request was answered. A silent network counts as lost after a while only. */
static bool agent_good(job *j, cdp_status st) {
    if (st == CDP_OK) {
        j->nodes.answered = now_ns();
        return true;
    }
    if (j->nodes.store != NULL
        && (st != CDP_ERR_TIMEOUT || now_ns() - j->nodes.answered > SILENCE_LIMIT))
        nodes_lost(j);
    return false;
}

/* The verdict of this launcher alone: the others go on. */
static void agent_refuse(job *j, int code, const char *format, ...) {
    char text[FAILURE_BYTES];
    va_list args;
    const int used = snprintf(text, sizeof text, "%d ", code);
    va_start(args, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, args);
    va_end(args);
    verdict_set(j, text, true);
}

static void agent_elastic(const options *o, cdp_elastic *e, char kind) {
    const unsigned long long hash =
        (unsigned long long)cdp__hash(CDP__HASH_START, o->run_id, strlen(o->run_id));
    const bool fits = strlen(o->run_id) <= 40;
    e->os = cdp_os_default();
    e->mutex = e->os->threads.mutex_create(e->os);
    e->cond = e->os->threads.cond_create(e->os);
    if (e->mutex == NULL || e->cond == NULL) fatal("out of memory");
    if (fits)
        snprintf(e->job, sizeof e->job, "%s/%c", o->run_id, kind);
    else
        snprintf(e->job, sizeof e->job, "%.20s-%016llx/%c", o->run_id, hash, kind);
    e->store_ms = CLAIM_MS / 2;
    e->asks_again = true; /* see agent_good() */
    e->desc.min_ranks = (uint32_t)o->min_nodes;
    e->desc.max_ranks = (uint32_t)o->max_nodes;
    e->desc.join_ms = UINT32_MAX;                         /* agent_missing() judges this time */
    e->desc.grow_ms = (uint32_t)(o->last_call / 1000000); /* at most MOST_NS */
}

/* An id is never used twice. */
static void agent_name(cdp_elastic *e) {
    memset(&e->place, 0, sizeof e->place);
    memset(&e->failure, 0, sizeof e->failure);
    if (e->os->random(e->os->user, e->place.id, sizeof e->place.id) != CDP_OK)
        fatal("the system has no random bytes");
    e->place.has_state = true;
    cdp__elastic_hex(e->place.id, e->id);
}

static void agent_open(job *j, options *o) {
    agent *a = j->agent = zalloc(1, sizeof *a);
    a->opts = o;
    agent_elastic(o, &a->e, 'n');
    agent_elastic(o, &a->ranks, 'r');
    agent_name(&a->ranks);
    a->waits = now_ns();
    if (o->host_port == 0) o->host_port = port_choose();
}

static bool agent_serve_at(job *j, const char *host, int port) {
    const options *o = j->opts;
    const cdp_store_server_desc d = {.host = host,
        .port = (uint16_t)port,
        .job_key = o->key[0] != '\0' ? o->key : NULL,
        .logger = {.level = CDP_LOG_SILENT},
        .trust_network = o->open};
    return cdp_store_server_create(&d, &j->nodes.server) == CDP_OK;
}

/* The launcher on the endpoint's machine serves the store; of several there, the first one. Of a
   list, each serves the first that is on its machine and that no other one has. */
static void agent_serve(job *j) {
    const options *o = j->opts;
    bool served = j->nodes.server != NULL;
    if (o->external != NULL || o->is_host == 0) return;
    if (!served && o->server_count == 0) served = agent_serve_at(j, o->host, o->host_port);
    for (int i = 0; !served && i < o->server_count; ++i)
        served = agent_serve_at(j, o->servers[i].host, o->servers[i].port);
    if (served || o->is_host != 1) return;
    if (o->server_count > 0)
        agent_refuse(j, EXIT_INTERNAL, "this launcher must serve one of %.400s (is_host=1), but %s",
            o->server_list, cdp_last_error()->text);
    else
        agent_refuse(j, EXIT_INTERNAL, "this launcher must serve %.255s:%d (is_host=1), but %s",
            o->host, o->host_port, cdp_last_error()->text);
}

static void agent_will(agent *a) {
    char host[128] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(a->will, sizeof a->will,
        "the launcher on %s (process %ld) has died, or its machine is out of reach", host,
        (long)getppid());
}

/* A line of the store that lives on several servers: one of them is lost, for instance. */
static void agent_log(cdp_log_level level, const char *text, int32_t rank, void *user) {
    job *j = user;
    (void)level;
    (void)rank;
    if (j->phase < LEAVE) say(j, "%s", text); /* later the servers end one after the other */
}

/* Opens the store where the launchers meet, with this last will. */
static cdp_status agent_open_store(job *j, const char *will_key, cdp_bytes will) {
    const options *o = j->opts;
    const char *const key = o->key[0] != '\0' ? o->key : NULL;
    const cdp_tcp_store_desc one = {.host = o->host,
        .port = (uint16_t)o->host_port,
        .job_key = key,
        .timeout_ms = CLAIM_MS,
        .connect_timeout_ms = LOOK_MS,
        .will_key = will_key,
        .will_value = will};
    const cdp_quorum_store_desc several = {.servers = o->server_list,
        .job_key = key,
        .trust_network = o->open,
        .timeout_ms = CLAIM_MS,
        /* a server that is gone must not take the time of those after it */
        .connect_timeout_ms = (uint32_t)o->server_count * 2 * LOOK_MS,
        .will_key = will_key,
        .will_value = will,
        .logger = {.func = agent_log, .user = j}};
    return o->server_count == 0 ? cdp_tcp_store_create(&one, &j->nodes.store)
                                : cdp_quorum_store_create(&several, &j->nodes.store);
}

/* False: not yet. */
static bool agent_connect(job *j) {
    agent *a = j->agent;
    nodes *s = &j->nodes;
    char gone[CDP__ELASTIC_KEY];
    agent_serve(j);
    if (s->final) return false;
    agent_name(&a->e);
    agent_will(a);
    cdp__elastic_key(&a->e, gone, "gone/%s", a->e.id);
    const cdp_bytes will = {.data = a->will, .bytes = strlen(a->will)};
    const cdp_status st = agent_open_store(j, gone, will);
    if (st == CDP_ERR_MISMATCH) nodes_lost(j);
    if (st != CDP_OK) return false;
    s->answered = now_ns();
    a->e.store = a->e.watched = a->ranks.store = a->ranks.watched = s->store;
    return true;
}

/* Options that must be equal on all machines, and then a ticket. */
static bool agent_enter(job *j) {
    const options *o = j->opts;
    agent *a = j->agent;
    char key[CDP__ELASTIC_KEY], mine[300], theirs[FAILURE_BYTES];
    snprintf(mine, sizeof mine, "-n %d --nnodes %d:%d --max-restarts %d --role %.100s%s", o->n,
        o->min_nodes, o->max_nodes, o->max_restarts, o->role, o->stay ? " --stay" : "");
    cdp__elastic_key(&a->e, key, "settings");
    if (!nodes_claim(j, key, mine, theirs)) return false;
    if (strcmp(mine, theirs) != 0) {
        agent_refuse(j, EXIT_USAGE,
            "this launcher was started with other options than the job: %s, not %s", mine, theirs);
        return false;
    }
    cdp_status st = cdp__elastic_fresh_as(&a->e, mine, &a->last);
    a->handed_in = st == CDP_OK;
    if (st == CDP_OK) st = cdp__elastic_hand_in(&a->e);
    if (st != CDP_OK) nodes_lost(j); /* a second ticket would be a second machine */
    return st == CDP_OK;
}

/* What the others read before they know it by a will. */
static void agent_gone(job *j, const char *why) {
    agent *a = j->agent;
    if (!a->handed_in || j->nodes.store == NULL) return;
    a->handed_in = !agent_good(j, cdp__elastic_record_end(&a->e, j->nodes.store, why));
}

/* ---- >>agent-epoch  From a ticket to an epoch, and from one to the next. */

/* So many seconds are over since the machines began to be too few. */
static void agent_missing(job *j, uint32_t there) {
    const options *o = j->opts;
    const agent *a = j->agent;
    char place[300];
    if (now_ns() - a->waits < o->join_timeout) return;
    snprintf(place, sizeof place, "%s:%d", o->host, o->host_port);
    agent_gone(j, "gave up");
    agent_refuse(j, EXIT_TIMEOUT,
        "%u of at least %d machines %s within %.10g s; each must run cdprun with %s %s", there,
        o->min_nodes, a->ran == 0 ? "came" : "were left, and no other came",
        seconds(o->join_timeout), o->external != NULL ? "--external-store" : "--rdzv-endpoint",
        o->server_count > 0 ? o->server_list : place);
}

/* This launcher is in the epoch of e->d. */
static void agent_joined(job *j) {
    agent *a = j->agent;
    char key[CDP__ELASTIC_KEY], text[24];
    cdp__elastic_run(&a->e.place, &a->e.d);
    a->e.desc.settle_ms = (uint32_t)(j->opts->settle / 1000000);
    a->e.epoch_ns = cdp__elastic_now_ns(&a->e);
    j->attempt = (int)a->e.d.epoch - 1;
    if (a->e.place.rank != 0) return;
    snprintf(text, sizeof text, "%llu", (unsigned long long)a->e.d.epoch);
    cdp__elastic_key(&a->e, key, "e/now");
    agent_good(j, cdp__elastic_put(&a->e, j->nodes.store, CDP_STORE_SET, key, text, strlen(text)));
}

/* All members of the newest epoch are dead: those who wait begin anew, at the cost of a restart. */
static cdp_status agent_found_again(agent *a, cdp_store *store, uint32_t *tickets) {
    cdp__elastic_decision none = {.tickets = a->last.tickets}, d, won = {0};
    cdp__elastic_view v = {
        .old = &none, .min_ranks = a->e.desc.min_ranks, .max_ranks = a->e.desc.max_ranks};
    cdp__elastic_ticket *list = NULL;
    cdp_status st = cdp__elastic_read_tickets(&a->e, store, 0, &list, &v.ticket_count);
    v.tickets = list;
    *tickets = 0;
    for (uint32_t i = 0; st == CDP_OK && i < v.ticket_count; ++i)
        *tickets += !list[i].ended;
    d.members = zalloc((size_t)v.ticket_count + 1, sizeof *d.members);
    if (st == CDP_OK && cdp__elastic_founds(&v, a->e.place.id, UINT64_MAX, 0)
        && cdp__elastic_decide(&v, &d) == CDP__ELASTIC_DECIDED) {
        d.epoch = a->last.epoch + 1;
        d.step = a->last.step + 1;
        snprintf(d.cause, sizeof d.cause, "all launchers of epoch %llu have died",
            (unsigned long long)a->last.epoch);
        st = cdp__elastic_propose(&a->e, store, &d, &won);
    }
    cdp__free(a->e.os, won.members); /* it is read like those that others propose */
    free(d.members);
    cdp__free(a->e.os, list);
    return st;
}

static cdp_status agent_all_gone(agent *a, cdp_store *store, bool *all) {
    cdp_status st = CDP_OK;
    *all = a->last.size > 0;
    for (uint32_t r = 0; st == CDP_OK && *all && r < a->last.size; ++r)
        st = cdp__elastic_has_ended(&a->e, store, a->last.members[r].id, all);
    return st;
}

/* Nobody has decided on a first epoch: does so, if it is time. */
static cdp_status agent_found(agent *a, cdp_store *store) {
    cdp__elastic_decision won = {0};
    cdp__elastic_get g[CDP__ELASTIC_ENTERS] = {{.claim = NULL}};
    cdp__elastic_get *const in = g + CDP__ELASTIC_TICKETS;
    const uint32_t end = cdp__elastic_ask_tickets(&a->e, &a->entry, g);
    cdp_status st = cdp__elastic_get_all(&a->e, store, in, end - CDP__ELASTIC_TICKETS);
    if (st != CDP_OK) return st;
    st = cdp__elastic_found_first(&a->e, g, &a->entry, &won);
    a->seen = a->entry.ticket_count;
    cdp__elastic_get_free(store, in, end - CDP__ELASTIC_TICKETS);
    cdp__free(a->e.os, won.members);
    return st;
}

/* Waits to be taken in: without limit while a job runs. */
static void agent_wait(job *j) {
    agent *a = j->agent;
    cdp_store *store = j->nodes.store;
    bool gone = false;
    a->e.desc.settle_ms = (uint32_t)(j->opts->last_call / 1000000);
    if (!agent_good(j, cdp__elastic_newest(&a->e, &a->last, a->last.epoch + 1))) return;
    if (a->e.place.phase == CDP__ELASTIC_JOINED) {
        cdp__elastic_adopt(&a->e, &a->last);
        memset(&a->last, 0, sizeof a->last);
        agent_joined(j);
        return;
    }
    if (a->last.epoch == 0) {
        agent_good(j, agent_found(a, store));
        agent_missing(j, a->seen);
    } else if (agent_good(j, agent_all_gone(a, store, &gone)) && gone) {
        if (agent_good(j, agent_found_again(a, store, &a->seen))) agent_missing(j, a->seen);
    } else {
        a->waits = now_ns();
    }
}

static void agent_alarm(job *j, const char *why) {
    agent *a = j->agent;
    if (j->nodes.store == NULL) return;
    agent_good(j, cdp__elastic_alarm_at(&a->e, j->nodes.store, a->e.place.epoch, why));
}

/* The epoch is over: its ranks end, and this launcher arrives at once, so that nobody waits. */
static void agent_arrive(job *j, const char *why) {
    agent *a = j->agent;
    nodes *s = &j->nodes;
    char text[FAILURE_BYTES] = "";
    const bool failure = strncmp(why, "failure", 7) == 0;
    const bool mine = a->ran == a->e.place.epoch;
    if (failure && nodes_look(j, node_key(j, "failure", j->attempt), text))
        verdict_set(j, text, false);
    if (s->verdict[0] == '\0') {
        snprintf(text, sizeof text, "%d %.1000s", EXIT_INTERNAL, why);
        verdict_set(j, text, false);
    }
    event(j, "\"event\": \"alarm\", \"epoch\": %llu, \"cause\": \"%s\"",
        (unsigned long long)a->e.place.epoch, event_text(s->verdict));
    a->e.place.step += failure;
    a->waits = a->decided = now_ns();
    agent_good(j, cdp__elastic_arrive_at(&a->e, a->e.place.epoch));
    a->settle = (cdp__elastic_settle){.since_ns = a->e.epoch_ns, .due_ns = a->e.epoch_ns};
    /* not arrived, because the store did not answer: the next look counts the failure again */
    if (a->e.place.phase == CDP__ELASTIC_RUNNING) a->e.place.step -= failure;
    if (!mine || j->cause != NOTHING) return;
    if (failure) {
        on_elsewhere(j);
        return;
    }
    j->cause = ELSEWHERE;
    if (j->phase != RUN) return;
    say(j, "%s; ending the ranks here, which start again then", s->verdict);
    enter_term(j);
}

/* Of one other launcher each, so that together they see all. */
static void agent_look_for_dead(job *j) {
    agent *a = j->agent;
    const cdp__elastic_decision *d = &a->e.d;
    const uint32_t next = (a->e.place.rank + 1) % d->size;
    char key[CDP__ELASTIC_KEY], hex[2 * CDP__ELASTIC_ID_BYTES + 1], why[FAILURE_BYTES];
    if (next == a->e.place.rank) return;
    cdp__elastic_hex(d->members[next].id, hex);
    cdp__elastic_key(&a->e, key, "gone/%s", hex);
    if (!nodes_look(j, key, why)) return;
    if (strncmp(why, "leaves", 6) == 0) {
        agent_alarm(j, why);
        return;
    }
    char text[FAILURE_BYTES - 8];
    snprintf(text, sizeof text, "node %u is lost: %.500s", next, why);
    const bool last = a->e.place.step >= (uint64_t)j->opts->max_restarts;
    nodes_tell(j, text, EXIT_INTERNAL, last);
    if (!last) agent_alarm(j, "failure");
}

static void agent_look_for_newcomers(job *j) {
    agent *a = j->agent;
    const uint64_t age = cdp__elastic_now_ns(&a->e) - a->e.epoch_ns;
    if (a->e.place.rank != 0 || a->e.place.size >= a->e.desc.max_ranks) return;
    if (j->phase != RUN || age < a->e.desc.grow_ms * CDP__MS) return;
    if (nodes_count(j, node_key(j, "done", j->attempt), 0) > 0 || j->nodes.store == NULL) return;
    bool found; /* the alarm is seen in the next look */
    agent_good(j, cdp__elastic_look_for_newcomers(&a->e, &found));
}

/* Whether something has ended the epoch. `why` has FAILURE_BYTES. */
static bool agent_alarmed(job *j, char *why) {
    agent *a = j->agent;
    char key[CDP__ELASTIC_KEY];
    cdp__elastic_key(&a->e, key, "e/%llu/alarm", (unsigned long long)a->e.place.epoch);
    return nodes_look(j, key, why);
}

/* In an epoch: what ends it? */
static void agent_watch(job *j) {
    char why[FAILURE_BYTES];
    if (agent_alarmed(j, why)) {
        agent_arrive(j, why);
        return;
    }
    if (j->nodes.store != NULL) agent_look_for_dead(j);
    if (j->nodes.store != NULL) agent_look_for_newcomers(j);
}

/* The others have decided without this launcher: it comes back under another id. */
static void agent_left_out(job *j) {
    agent *a = j->agent;
    say(j,
        "the other machines went on without this one, which did not answer for %.10g s; it asks "
        "to be taken in again",
        seconds(j->opts->settle));
    event(j, "\"event\": \"left_out\"");
    agent_gone(j, "left out");
    cdp_store_destroy(j->nodes.store);
    j->nodes.store = NULL;
    j->nodes.introduced = false;
    a->waits = now_ns();
    if (j->phase == RUN) enter_term(j);
}

/* Between two epochs: decides, or learns what was decided. */
static void agent_turn(job *j) {
    agent *a = j->agent;
    cdp__elastic_decision d;
    cdp__elastic_get in = {.claim = NULL};
    uint64_t wait_ms = 0;
    cdp_status st;
    if (!agent_good(j, cdp__elastic_read_decision(&a->e, j->nodes.store, a->e.place.epoch + 1, &d)))
        return;
    if (d.members == NULL) {
        cdp__elastic_key(&a->e, in.key, "e/%llu/in", (unsigned long long)a->e.place.epoch);
        st = cdp__elastic_get_all(&a->e, j->nodes.store, &in, 1);
        if (st == CDP_OK) st = cdp__elastic_look(&a->e, &in, &a->settle, &wait_ms, &d);
        cdp__elastic_get_free(j->nodes.store, &in, 1);
        if (!agent_good(j, st)) return;
        if (a->e.few) agent_missing(j, a->e.d.size - 1);
    }
    if (d.members == NULL) return;
    cdp__elastic_adopt(&a->e, &d);
    if (a->e.place.phase == CDP__ELASTIC_OUT)
        agent_left_out(j);
    else
        agent_joined(j);
}

/* The address of this machine on the way to the store. */
static void agent_address(job *j) {
    const options *o = j->opts;
    agent *a = j->agent;
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    struct sockaddr_storage mine;
    socklen_t size = sizeof mine;
    char port[16];
    snprintf(port, sizeof port, "%d", o->host_port);
    snprintf(a->addr, sizeof a->addr, "%s", o->local_addr != NULL ? o->local_addr : "127.0.0.1");
    if (o->local_addr != NULL || getaddrinfo(o->host, port, &hints, &found) != 0) return;
    const int fd = socket(found->ai_family, SOCK_DGRAM, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0
        && getsockname(fd, (struct sockaddr *)&mine, &size) == 0)
        getnameinfo(
            (struct sockaddr *)&mine, size, a->addr, sizeof a->addr, NULL, 0, NI_NUMERICHOST);
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
}

/* The first machine says where its rank 0 will be; then all start their ranks. */
static void agent_begin(job *j) {
    agent *a = j->agent;
    options *o = a->opts;
    const cdp__elastic_decision *d = &a->e.d;
    char text[FAILURE_BYTES], go[FAILURE_BYTES];
    if (a->e.place.rank == 0) {
        agent_address(j);
        snprintf(text, sizeof text, "%d %s", attempt_port(j), a->addr);
        if (!nodes_claim(j, node_key(j, "go", j->attempt), text, go)) return;
    }
    if (!nodes_look(j, node_key(j, "go", j->attempt), go)) return;
    snprintf(a->addr, sizeof a->addr, "%s", go + strcspn(go, " ") + (strchr(go, ' ') != NULL));
    o->addr = a->addr;
    o->node_rank = (int)a->e.place.rank;
    o->nnodes = (int)d->size;
    j->nodes.told = false;
    j->nodes.verdict[0] = '\0';
    a->ran = d->epoch;
    j->restarts = (int)d->step;
    if (d->epoch > 1)
        say(j, "starting all ranks again: this is node %d of %d, %d of %d restarts are used",
            o->node_rank, o->nnodes, j->restarts, o->max_restarts);
    event(j,
        "\"event\": \"epoch\", \"epoch\": %llu, \"node\": %d, \"nodes\": %d, \"lost\": %u, "
        "\"joined\": %u, \"restarts\": %d, \"turn_ms\": %.1f, \"cause\": \"%s\"",
        (unsigned long long)d->epoch, o->node_rank, o->nnodes, d->lost, d->joined, j->restarts,
        a->decided != 0 ? (double)(now_ns() - a->decided) / 1e6 : 0, event_text(d->cause));
    attempt_start(j, atoi(go));
}

/* ---- >>agent-end  How ranks ended here, and how the job ends. */

static void agent_final(job *j, const char *text, int code) {
    if (j->nodes.store != NULL) nodes_tell(j, text, code, true);
}

/* This machine goes, the others stay. Without the store nobody could; of several servers one may
   go. */
static void agent_leave(job *j) {
    agent *a = j->agent;
    char text[120];
    const char *name = signal_name(j->user_signal);
    const bool ends = j->user_signal == SIGINT || j->user_signal == SIGQUIT;
    if (ends || (j->nodes.server != NULL && j->opts->server_count == 0)) {
        snprintf(text, sizeof text, "node %d%s was ended by %s", j->opts->node_rank,
            ends ? "" : ", which serves the store,", name);
        agent_final(j, text, 128 + j->user_signal);
        return;
    }
    snprintf(text, sizeof text, "leaves: node %d got %s", j->opts->node_rank, name);
    agent_gone(j, text);
    if (a->e.place.phase == CDP__ELASTIC_RUNNING) agent_alarm(j, text);
    a->e.place.phase = CDP__ELASTIC_OUT;
}

static void agent_tell_failure(job *j) {
    const agent *a = j->agent;
    char text[FAILURE_BYTES];
    const bool last = j->no_restart || a->e.place.step >= (uint64_t)j->opts->max_restarts;
    if (a->e.place.phase != CDP__ELASTIC_RUNNING || a->e.place.epoch != a->ran) return;
    if (agent_alarmed(j, text)) return; /* it has ended the epoch, and the ranks here by it */
    failure_text(j, j->first, text, sizeof text - 8);
    nodes_tell(j, text, j->code, last);
    if (!last) agent_alarm(j, "failure");
}

/* Says to the others, once, what has ended the ranks here. */
static void agent_tell(job *j) {
    const options *o = j->opts;
    char text[FAILURE_BYTES - 8];
    if (j->nodes.told || (j->cause == FAILURE && now_ns() < j->nodes.tell_at)) return;
    if (j->cause == NOTHING && (j->phase != AGREE || j->agent->ran == 0)) return;
    j->nodes.told = true;
    switch (j->cause) {
    case FAILURE: agent_tell_failure(j); break;
    case SIGNALLED: agent_leave(j); break;
    case TIMED_OUT:
        snprintf(text, sizeof text, "node %d has reached its --timeout", o->node_rank);
        agent_final(j, text, j->code);
        break;
    case NOT_STARTED:
        snprintf(text, sizeof text, "node %d cannot run '%.500s'", o->node_rank, o->command[0]);
        agent_final(j, text, j->code);
        break;
    case READER_GONE:
        snprintf(text, sizeof text, "on node %d the reader of stdout went away", o->node_rank);
        agent_final(j, text, j->code);
        break;
    case ELSEWHERE: break;
    case NOTHING: nodes_count(j, node_key(j, "done", j->attempt), 1); break;
    }
}

/* As agent_tell(), at once: ranks wait for it. */
static void agent_tell_soon(job *j) {
    cdp_elastic *const e = &j->agent->e;
    const uint32_t usual = e->store_ms;
    e->store_ms = LOOK_MS;
    agent_tell(j);
    e->store_ms = usual;
}

/* Nobody who still has to read how the job ended is left alone by the one that serves the store. */
static void agent_count_readers(job *j) {
    agent *a = j->agent;
    cdp__elastic_ticket *list;
    uint32_t count;
    j->nodes.expected = 0;
    if (!agent_good(j, cdp__elastic_read_tickets(&a->e, j->nodes.store, 0, &list, &count))) return;
    for (uint32_t i = 0; i < count; ++i)
        j->nodes.expected += !list[i].ended;
    cdp__free(a->e.os, list);
}

/* Everything that this launcher started has ended. */
static void agent_finish(job *j) {
    nodes *s = &j->nodes;
    if (s->verdict[0] != '\0' && s->final && (j->cause == FAILURE || j->cause == ELSEWHERE))
        j->code = s->code;
    if (j->agent->done && j->agent->ran == 0)
        say(j, "the job has ended well; this machine was not needed");
    report(j);
    event(j, "\"event\": \"end\", \"exit_code\": %d, \"restarts\": %d, \"cause\": \"%s\"", j->code,
        j->restarts, event_text(s->verdict));
    /* the others go on without this machine, and its server */
    const bool alone = j->agent->e.place.phase == CDP__ELASTIC_OUT;
    const bool serves = s->server != NULL && s->store != NULL && !alone;
    if (serves) agent_count_readers(j);
    if (s->store != NULL) nodes_count(j, node_key(j, "left", -1), 1);
    if (serves && s->store != NULL)
        enter(j, LEAVE, LEAVE_LIMIT);
    else
        enter(j, FLUSH, reader_limit(j));
}

static void agent_look_for_final(job *j) {
    agent *a = j->agent;
    nodes *s = &j->nodes;
    char text[FAILURE_BYTES];
    if (s->final || a->done || !nodes_look(j, node_key(j, "final", -1), text)) return;
    if (strncmp(text, "0 ", 2) == 0) {
        a->done = true;
        return;
    }
    s->verdict[0] = '\0'; /* what ends the job counts before what ended an epoch */
    verdict_set(j, text, true);
    event(j, "\"event\": \"final\", \"cause\": \"%s\"", event_text(s->verdict));
}

/* All machines have ended well. */
static void agent_look_for_done(job *j) {
    char there[FAILURE_BYTES];
    if (!j->nodes.told || j->cause != NOTHING || j->agent->ran == 0) return;
    if (nodes_count(j, node_key(j, "done", j->attempt), 0) < j->opts->nnodes) return;
    nodes_claim(j, node_key(j, "final", -1), "0 done", there);
}

/* ---- >>stay  Ranks that live on when others die. */

/* How the ranks of the job call themselves, and where they look. */
static void stay_place(const job *j, rank *r, cdp__launch_place *p) {
    static char range[64];
    const options *o = j->opts;
    agent *a = j->agent;
    agent_name(&a->ranks);
    memcpy(r->id, a->ranks.id, sizeof r->id);
    snprintf(range, sizeof range, "%d:%d", o->min_nodes * o->n, o->max_nodes * o->n);
    p->elastic = range;
    p->elastic_id = r->id;
    p->elastic_job = a->ranks.job;
    if (o->server_count > 0) p->elastic_servers = o->server_list;
}

/* The newest decision of the ranks, which may be one ahead of what they have said. */
static cdp_status stay_newest(job *j, cdp__elastic_decision *d) {
    cdp_elastic *const e = &j->agent->ranks;
    cdp__elastic_decision next;
    uint64_t k = 0;
    cdp_status st = cdp__elastic_hint(e, &k);
    if (k == 0) k = 1;
    for (; st == CDP_OK; ++k) {
        st = cdp__elastic_read_decision(e, j->nodes.store, k, &next);
        if (st != CDP_OK || next.members == NULL) break;
        cdp__free(e->os, d->members);
        *d = next;
    }
    return st;
}

/* The number of a process in this epoch; d->size: it is not in it. */
static uint32_t stay_rank_in(const cdp__elastic_decision *d, const rank *r) {
    char hex[2 * CDP__ELASTIC_ID_BYTES + 1];
    uint32_t i = 0;
    for (; i < d->size; ++i) {
        cdp__elastic_hex(d->members[i].id, hex);
        if (strcmp(hex, r->id) == 0) break;
    }
    return i;
}

/* The ranks of the job learn of a death from the one who knows it best. They have other numbers
   than the launcher's processes. */
static void stay_tell(job *j, const rank *r, const char *end) {
    agent *a = j->agent;
    cdp__elastic_decision d = {.epoch = 0};
    char key[CDP__ELASTIC_KEY], process[200], why[240], host[64] = "?";
    cdp_elastic *const e = &a->ranks;
    if (j->nodes.store == NULL) return;
    gethostname(host, sizeof host - 1);
    snprintf(process, sizeof process, "process %ld on %s ended: %s", (long)r->p.pid, host, end);
    e->store_ms = LOOK_MS;
    cdp__elastic_key(e, key, "gone/%s", r->id);
    cdp_status st = cdp__elastic_mark(e, j->nodes.store, key, process);
    if (st == CDP_OK) st = stay_newest(j, &d);
    const uint32_t number = st == CDP_OK ? stay_rank_in(&d, r) : d.size;
    if (number < d.size) {
        snprintf(why, sizeof why, "rank %u: %s", number, process);
        st = cdp__elastic_alarm_at(e, j->nodes.store, d.epoch, why);
    }
    cdp__free(e->os, d.members);
    agent_good(j, st);
}

/* Between 0.75 and 1.25 of the pause, so that what failed together does not come back together. */
static int64_t stay_jitter(int64_t pause) {
    unsigned char random[2] = {0, 128};
    (void)cdp_os_default()->random(NULL, random, sizeof random);
    return pause / 4 * 3 + pause / 65536 * (random[0] * 256 + random[1]) / 2;
}

/* A rank has ended. When the job is over, that is no failure, however it ended: for instance, a
   newcomer that came too late gets an error. */
static void stay_ended(job *j, int local) {
    const options *o = j->opts;
    rank *r = &j->ranks[local];
    char end[96];
    const int64_t lived = (int64_t)(r->p.end_ns - r->p.begun_ns);
    if (cdp__launch_blame(&r->p) == 0 || j->agent->done) return;
    end_text(end, sizeof end, r);
    stay_tell(j, r, end);
    /* it could hold what the new process needs; a group that lives keeps its number */
    if (r->group_left) kill(-r->p.pid, SIGKILL);
    r->pause = r->pause == 0 || lived > 60 * o->cooldown ? o->cooldown : r->pause * 2;
    if (r->pause > 60 * o->cooldown) r->pause = 60 * o->cooldown;
    r->again_at = now_ns() + stay_jitter(r->pause);
    say(j, "rank %d ended: %s after %.2f s", global_rank(j, local), end, seconds(lived));
}

static bool stay_waits(const job *j) {
    for (int i = 0; i < j->opts->n; ++i)
        if (j->ranks[i].again_at != 0) return true;
    return false;
}

static void stay_look_for_done(job *j) {
    agent *a = j->agent;
    char key[CDP__ELASTIC_KEY], text[FAILURE_BYTES];
    cdp__elastic_key(&a->ranks, key, "final");
    if (a->done || !nodes_look(j, key, text)) return;
    a->done = true;
    for (int i = 0; i < j->opts->n; ++i)
        j->ranks[i].again_at = 0;
}

/* Ranks that are not known to be dead: those of the newest epoch (0: none yet), and newcomers that
   wait. */
static cdp_status stay_left(job *j, int *left, uint64_t *epoch) {
    cdp_elastic *const e = &j->agent->ranks;
    cdp__elastic_decision d = {.epoch = 0};
    cdp__elastic_ticket *list = NULL;
    uint32_t count = 0;
    bool gone = false;
    cdp_status st = stay_newest(j, &d);
    *left = 0;
    for (uint32_t i = 0; st == CDP_OK && i < d.size; ++i) {
        st = cdp__elastic_has_ended(e, j->nodes.store, d.members[i].id, &gone);
        *left += !gone;
    }
    /* where all members are dead, nobody has what newcomers would receive */
    if (st == CDP_OK && (*left > 0 || d.size == 0))
        st = cdp__elastic_read_tickets(e, j->nodes.store, d.tickets, &list, &count);
    for (uint32_t i = d.tickets; i < count; ++i)
        *left += !list[i].ended;
    *epoch = d.epoch;
    cdp__free(e->os, list);
    cdp__free(e->os, d.members);
    return st;
}

/* This rank, which is not replaced, ends the job for all launchers. */
static void stay_fail(job *j, int local) {
    char text[FAILURE_BYTES - 8];
    j->cause = FAILURE;
    j->first = local;
    j->code = cdp__launch_exit_code(&j->ranks[local].p.end);
    failure_text(j, local, text, sizeof text);
    nodes_tell(j, text, j->code, true);
    enter(j, GRACE, j->opts->grace);
}

/* Where all ranks of the newest epoch are dead, a new one would wait for nobody. True: the job has
   ended, one way or the other, or the store did not answer. */
static bool stay_is_lost(job *j, int local) {
    uint64_t epoch = 0;
    int left = 0;
    if (!agent_good(j, stay_left(j, &left, &epoch))) return true;
    if (left > 0 || epoch == 0) return false;
    stay_look_for_done(j); /* ranks that have finished say so before they end */
    if (j->agent->done) return true;
    for (int i = 0; i < j->opts->n; ++i)
        j->ranks[i].again_at = 0;
    say(j,
        "all ranks of epoch %llu have ended, and nobody has the state of the job; start it again "
        "from a checkpoint",
        (unsigned long long)epoch);
    stay_fail(j, local);
    return true;
}

/* No restart is left for this rank: the others go on, if they are enough. */
static void stay_give_up(job *j, int local) {
    const options *o = j->opts;
    const int need = o->min_nodes * o->n;
    uint64_t epoch;
    char why[200];
    int left;
    if (!agent_good(j, stay_left(j, &left, &epoch))) return;
    j->ranks[local].again_at = 0;
    snprintf(why, sizeof why,
        "rank %d is not replaced: the job has used all its restarts (--max-restarts %d)",
        global_rank(j, local), o->max_restarts);
    if (left >= need) {
        say(j, "%s", why);
        return;
    }
    say(j, "%s; %d of the %d ranks that the job needs %s left", why, left, need,
        left == 1 ? "is" : "are");
    stay_fail(j, local);
}

/* A new rank in place of a dead one, if the job has a restart left for it. */
static void stay_again(job *j, int local) {
    const options *o = j->opts;
    agent *a = j->agent;
    rank *r = &j->ranks[local];
    int64_t used = 0;
    if (stay_is_lost(j, local)) return;
    if (!r->charged) {
        j->nodes.store->timeout_ms = LOOK_MS;
        const cdp_status st = cdp_store_add(j->nodes.store, node_key(j, "restarts", -1), 1, &used);
        j->nodes.store->timeout_ms = CLAIM_MS;
        if (!agent_good(j, st)) return;
        r->charged = true;
        a->charged = (uint64_t)used;
    }
    if (a->charged > (uint64_t)o->max_restarts) {
        stay_give_up(j, local);
        return;
    }
    j->restarts = (int)a->charged;
    say(j, "a new process takes the place of rank %d (restart %d of %d)", global_rank(j, local),
        j->restarts, o->max_restarts);
    event(j, "\"event\": \"restart\", \"rank\": %d, \"local_rank\": %d, \"restarts\": %d",
        global_rank(j, local), local, j->restarts);
    rank_again(j, local);
}

/* The next epoch of the ranks, for the event log alone. A launcher that comes late begins with the
   newest one. False: there is none. */
static bool stay_follow(job *j) {
    agent *a = j->agent;
    cdp_elastic *const e = &a->ranks;
    cdp__elastic_decision d = {.epoch = 0};
    cdp_status st = CDP_OK;
    bool found;
    if (j->events < 0 || j->nodes.store == NULL) return false;
    e->store_ms = LOOK_MS;
    if (a->followed == 0)
        st = stay_newest(j, &d);
    else
        st = cdp__elastic_read_decision(e, j->nodes.store, a->followed + 1, &d);
    found = agent_good(j, st) && d.members != NULL;
    if (found) {
        a->followed = d.epoch;
        event(j,
            "\"event\": \"epoch\", \"epoch\": %llu, \"node\": %d, \"ranks\": %u, \"lost\": %u, "
            "\"joined\": %u, \"step\": %llu, \"cause\": \"%s\"",
            (unsigned long long)d.epoch, a->number, d.size, d.lost, d.joined,
            (unsigned long long)d.step, event_text(d.cause));
    }
    cdp__free(e->os, d.members);
    return found;
}

/* The first MAX of the launchers that live start ranks; the others are spares. */
static void stay_join(job *j) {
    agent *a = j->agent;
    cdp__elastic_ticket *list;
    uint32_t count, before = 0, i;
    if (!agent_good(j, cdp__elastic_read_tickets(&a->e, j->nodes.store, 0, &list, &count))) return;
    for (i = 0; i < count && !cdp__elastic_same(list[i].id, a->e.place.id); ++i)
        before += !list[i].ended;
    cdp__free(a->e.os, list);
    if (before >= a->e.desc.max_ranks || i == count) return;
    a->number = (int)i;
    a->opts->node_rank = a->number;
    a->opts->nnodes = a->opts->max_nodes;
    a->ran = 1;
    event(j, "\"event\": \"start\", \"node\": %d", a->number);
    attempt_start(j, j->opts->host_port);
}

/* No rank runs here any more, and none will be started. */
static void stay_over(job *j) {
    const bool well = j->cause == NOTHING;
    while (stay_follow(j)) {
    }
    for (int i = 0; well && !j->agent->done && i < j->opts->n; ++i) {
        const rank *r = &j->ranks[i];
        if (cdp__launch_blame(&r->p) == 0) continue;
        j->cause = FAILURE;
        j->first = i;
        j->code = cdp__launch_exit_code(&r->p.end);
        break;
    }
    if (j->cause == FAILURE && well) agent_gone(j, "its ranks have ended");
    agent_finish(j);
}

static void stay_step(job *j) {
    const agent *a = j->agent;
    if (j->nodes.store != NULL) stay_look_for_done(j);
    while (j->phase == RUN && stay_follow(j)) {
    }
    if (j->phase == JOIN && a->done) {
        agent_finish(j);
    } else if (j->phase == JOIN && j->nodes.store != NULL) {
        stay_join(j);
    } else if (j->phase == AGREE) {
        stay_over(j);
    }
    for (int i = 0; i < j->opts->n && j->phase == RUN && j->nodes.store != NULL; ++i) {
        const int64_t at = j->ranks[i].again_at;
        if (at != 0 && now_ns() >= at && j->started < 0) stay_again(j, i);
    }
}

/* ---- >>agent  The part that this takes in the keeper's loop. */

static void restart_step(job *j) {
    agent *a = j->agent;
    const bool idle = j->phase == JOIN || j->phase == AGREE;
    if (a->done) {
        if (idle) agent_finish(j);
        return;
    }
    switch (a->e.place.phase) {
    case CDP__ELASTIC_WAITING: agent_wait(j); break;
    case CDP__ELASTIC_RUNNING: agent_watch(j); break;
    case CDP__ELASTIC_ARRIVED: agent_turn(j); break;
    default: break;
    }
    if (j->nodes.store == NULL || j->nodes.final || !idle) return;
    if (a->e.place.phase == CDP__ELASTIC_RUNNING && a->e.place.epoch != a->ran)
        agent_begin(j);
    else if (j->phase == AGREE)
        agent_look_for_done(j);
}

/* Not yet connected. */
static void agent_arrive_first(job *j) {
    agent *a = j->agent;
    if (agent_connect(j)) {
        j->nodes.introduced = agent_enter(j);
        return;
    }
    if (j->nodes.final || now_ns() - a->waits < j->opts->join_timeout) return;
    agent_refuse(j, EXIT_TIMEOUT, "no store was there within %.10g s: %s",
        seconds(j->opts->join_timeout), cdp_last_error()->text);
}

/* Something has ended the job, or this machine's part in it. */
static bool agent_ends(job *j) {
    const cause c = j->cause;
    const bool idle = j->phase == JOIN || j->phase == AGREE;
    if (j->nodes.final && j->cause == NOTHING) on_elsewhere(j);
    if (!idle) return false;
    if (!j->nodes.final && c != SIGNALLED && c != TIMED_OUT && c != NOT_STARTED && c != READER_GONE)
        return false;
    agent_finish(j);
    return true;
}

static void agent_step(job *j) {
    nodes *s = &j->nodes;
    const int64_t now = now_ns();
    if (j->phase >= FLUSH || now < s->look_at) return;
    s->look_at = now + LOOK_TICK;
    if (j->phase == LEAVE) {
        if (s->store == NULL || now >= j->deadline
            || nodes_count(j, node_key(j, "left", -1), 0) >= s->expected)
            enter(j, FLUSH, reader_limit(j));
        return;
    }
    const bool wants = j->cause == NOTHING || j->cause == ELSEWHERE;
    if (s->store == NULL && !s->final && wants) agent_arrive_first(j);
    if (s->store != NULL) agent_look_for_final(j);
    if (s->store != NULL && !j->opts->stay) agent_tell(j);
    if (s->store != NULL && j->opts->stay && !s->told && j->cause != NOTHING && j->cause != FAILURE)
        agent_tell(j);
    if (agent_ends(j)) return;
    if (s->store == NULL) return;
    if (j->opts->stay)
        stay_step(j);
    else
        restart_step(j);
}
